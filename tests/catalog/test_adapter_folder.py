"""What is no model that kvplan sizes: directories with adapters, and models that embed or rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvplan.catalog.models import resolve_model, task_note
from kvplan.cli import main
from kvplan.errors import KvplanError, UsageError


@pytest.mark.parametrize(("rank", "slot"), [(16, 16), (20, 32), (1, 1), (400, 512), (1000, 1000)])
def test_an_adapter_names_its_base_and_its_slot(rank: int, slot: int, tmp_path: Path) -> None:
    """vllm/config/lora.py, MaxLoRARanks: the slot's rank is the next one that vLLM takes."""
    config = {"base_model_name_or_path": "meta-llama/Llama-3.1-8B", "r": rank}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError) as caught:
        resolve_model(str(tmp_path))
    assert caught.value.message == f"{tmp_path} holds a LoRA adapter of rank {rank}, not a model."
    assert (caught.value.hint or "").endswith(f": meta-llama/Llama-3.1-8B --max-lora-rank {slot}")


@pytest.mark.parametrize("text", ["[]", "{", '{"r": true, "base_model_name_or_path": "x"}', '{"r": 8}'])
def test_an_adapter_that_says_less_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(UsageError, match="holds a LoRA adapter, not a model"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("name", ["bge-m3", "BAAI/bge-m3", "Qwen3-Reranker-8B", "intfloat/multilingual-e5-large"])
def test_a_model_that_embeds_is_not_taken_for_a_misprint(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(KvplanError) as caught:
        resolve_model(name)
    hint = caught.value.hint or ""
    assert hint.startswith("kvplan sizes models that generate text;") and "did you mean" not in hint


def test_a_decoder_that_embeds_is_sized_with_a_note() -> None:
    note = task_note(resolve_model("Qwen/Qwen3-Embedding-8B"))
    assert note is not None and "no speed here is of what it does" in note
    assert task_note(resolve_model("qwen3-8b")) is None


def test_times_of_a_decoder_are_said_to_lack_its_encoder(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan of Whisper had times as of any model, and 637 million weights that nobody runs."""
    said = "Times of openai/whisper-large-v3 are those of its decoder"
    assert main(["plan", "whisper-large-v3", "--users", "4", "--ctx-avg", "300", "--gpu", "l4"]) == 0
    assert said in capsys.readouterr().err
    assert main(["estimate", "whisper-large-v3", "--gpu", "l4"]) == 0
    assert said in capsys.readouterr().err


def test_models_of_july_2025_have_the_layers_of_the_first_ones() -> None:
    first, longer = (resolve_model(f"Qwen/Qwen3-235B-A22B{each}") for each in ("", "-Instruct-2507-FP8"))
    assert longer.num_parameters == first.num_parameters and longer.sized_as == first.id
    assert (first.longest_context, longer.longest_context) == (40960, 262144)
    assert longer.quantization is not None and longer.quantization.method == "fp8"

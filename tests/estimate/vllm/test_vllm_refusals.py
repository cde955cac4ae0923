"""Settings that vLLM does not start with: refused in one sentence, with what it takes instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.vllm import latest_vllm
from kvplan.catalog.speculation.reading import with_speculation
from kvplan.catalog.vllm_refusals import LORA_RANKS, vllm_refusal
from kvplan.cli import main
from kvplan.errors import UsageError
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.settings import ServingSettings

LLAMA = resolve_model("llama-3.1-8b")


def start(gpu: str = "h100-sxm", version: str = "latest", **settings: object) -> ServingSettings:
    asked = ServingSettings(max_model_len=8192, **settings)  # type: ignore[arg-type]
    return predict_vllm(LLAMA, find_gpu(gpu), asked, version).settings.serving


@pytest.mark.parametrize("version", ["latest", "0.6.3"])
def test_a_step_holds_a_token_of_each_sequence(version: str) -> None:
    with pytest.raises(
        UsageError, match=r"vLLM takes no max_num_batched_tokens \(16\) below max_num_seqs \(256\)\."
    ) as error:
        start(version=version, max_num_seqs=256, max_num_batched_tokens=16)
    assert error.value.hint == "use --max-num-batched-tokens 256 or more, or --max-num-seqs 16 or less"
    assert start(version=version, max_num_batched_tokens=16).max_num_seqs == 16
    assert start(max_num_seqs=256, max_num_batched_tokens=256).max_num_seqs == 256


def test_the_default_step_may_be_too_small_too() -> None:
    with pytest.raises(UsageError, match=r"max_num_batched_tokens \(2,048\) below max_num_seqs \(4,096\)"):
        start("l4", max_num_seqs=4096)


@pytest.mark.parametrize(("rank", "hint"), [(7, "--max-lora-rank 8 holds them"), (600, "one of 1, 8, 16")])
def test_adapters_have_one_of_a_few_ranks(rank: int, hint: str) -> None:
    with pytest.raises(UsageError, match=f"vLLM has no max_lora_rank {rank}") as error:
        start(max_lora_rank=rank)
    assert (error.value.hint or "").startswith(hint)
    assert all(vllm_refusal(ServingSettings(max_lora_rank=each)) is None for each in LORA_RANKS)
    assert vllm_refusal(ServingSettings(max_loras=0, max_lora_rank=rank)) is None


def test_room_for_no_adapter_is_a_contradiction() -> None:
    with pytest.raises(UsageError, match="enable_lora asks for room for adapters, max_loras 0 for none"):
        ServingSettings(enable_lora=True, max_loras=0).check()


def test_a_sentence_begins_with_the_name_as_it_is_written() -> None:
    with pytest.raises(UsageError, match=f"^vLLM {latest_vllm()} has no kv_cache_dtype float32"):
        start(kv_cache_dtype="float32", dtype="bfloat16")
    with pytest.raises(UsageError, match=r"^The attention kernels"):
        start(block_size=7)


def test_a_removed_drafter_is_refused(tmp_path: Path) -> None:
    """0.33.0 has no Medusa: SpeculativeMethod in vllm/config/speculative.py does not list it."""
    config = {"medusa_num_heads": 3, "medusa_num_layers": 1}
    (tmp_path / "medusa").mkdir()
    (tmp_path / "medusa" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    asked = ServingSettings(max_model_len=8192, speculative_model=str(tmp_path / "medusa"), num_speculative_tokens=3)
    drafting = with_speculation(LLAMA, asked).spec
    with pytest.raises(UsageError, match=r"^vLLM 0\.33\.0 has no speculative method medusa\.$"):
        predict_vllm(drafting, find_gpu("h100-sxm"), asked, "0.33.0")
    assert predict_vllm(drafting, find_gpu("h100-sxm"), asked, "0.32.0").settings.serving.num_speculative_tokens == 3


def test_a_shorter_draft_model_limits_the_length_from_033_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """VllmConfig._limit_max_model_len_to_draft of 0.33.0; before, longer sequences went on without drafts."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8}
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "max_position_embeddings": 2048, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = ["estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--num-speculative-tokens", "3"]
    said = "vLLM 0.33.0 lowers max_model_len from 8,192 to 2,048, the longest of the draft model"
    for version, length, is_said in (("0.33.0", "8k", True), ("0.32.0", "8k", False), ("0.33.0", "2k", False)):
        more = ["--speculative-model", str(tmp_path), "--ctx", length, "--engine", f"vllm@{version}"]
        assert main([*words, *more]) == 0
        assert (said in capsys.readouterr().err) is is_said

"""Names that people type, of checkpoints and of Ollama's library: the shape that ships, and the format in the name."""

from __future__ import annotations

import pytest
from data_rows import data_rows

from kvplan.catalog import hub
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import find_profile, profiles, read_profile, resolve_model
from kvplan.catalog.variants import find_variant
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.estimate.weights import format_label
from kvplan.settings import ServingSettings
from kvplan.units import GIB

PROFILES = tuple(profiles())


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_hub_answers", lambda: False)


@pytest.mark.parametrize(("name", "base", "stored"), data_rows("checkpoint_names"))
def test_a_checkpoint_is_sized_by_its_name(name: str, base: str, stored: str | None) -> None:
    spec, profile = resolve_model(name), find_profile(base)
    assert profile is not None
    shape = read_profile(profile)
    assert spec.id == name
    assert spec.layers == shape.layers and spec.num_parameters == shape.num_parameters
    assert spec.max_position_embeddings == shape.max_position_embeddings
    assert (format_label(spec.quantization) if spec.quantization else None) == stored
    assert spec.assumptions[0].startswith(f"{name} is sized from its name alone: the shape of {shape.id}")


def test_the_address_of_a_page_on_the_hub_is_its_id() -> None:
    for address in ("https://huggingface.co/Qwen/Qwen3-8B", "hf.co/Qwen/Qwen3-8B/tree/main"):
        assert resolve_model(address).served_id == "Qwen/Qwen3-8B"


def test_names_are_taken_without_their_organisation_too() -> None:
    assert resolve_model("qwen2.5-coder-7b-instruct-awq").num_layers == 28


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-5-8B",
        "NousResearch/Hermes-3-Llama-3.1-8B",
        "someone/My-Llama-3.1-8B-Instruct-AWQ",
        "Qwen/Qwen2.5-14B",  # its positions differ from the Instruct model's
        "Qwen/Qwen2.5-Math-7B-Instruct",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",  # its head is not tied, as the base model's is
        "poolside/Laguna-XS-2.1-INT4",  # its gates differ from those of XS.2
        "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit",
    ],
)
def test_what_is_not_certain_stays_unknown(name: str) -> None:
    assert find_variant(name, PROFILES) is None
    with pytest.raises(KvplanError) as caught:
        resolve_model(name)
    assert "kvplan models lists" in (caught.value.hint or "")


def test_near_names_are_suggested_for_ids_too() -> None:
    with pytest.raises(KvplanError, match="is unreachable") as caught:
        resolve_model("moonshotai/Kimi-K2.8")
    assert "kimi-k2.5" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2,"),
        ("deepseek-ai/DeepSeek-V4.2", "deepseek-v4"),
        ("lama-3.1-8b", "llama-3.1-8b"),
        ("BAAI/bge-m3", ""),
    ],
)
def test_the_first_hint_is_of_the_same_family(name: str, first: str) -> None:
    with pytest.raises(KvplanError) as caught:
        resolve_model(name)
    hint = caught.value.hint or ""
    assert hint.startswith(f"did you mean {first}") if first else "did you mean" not in hint


def test_qwen_3_8_weighs_what_qwen_3_5_does() -> None:
    """The published index of Qwen3.8-27B says 55,562,855,904 B: language model, tower and multi-token layer."""
    spec = resolve_model("Qwen/Qwen3.8-27B")
    extras = sum(extra.num_parameters or 0 for extra in spec.extras)
    assert 2 * (spec.num_parameters + extras) == 55_562_855_904


def test_what_a_name_does_not_say_is_said_to_be_a_guess() -> None:
    assert "head or cache, as is usual for it" in resolve_model("RedHatAI/Qwen3.8-27B-NVFP4").assumptions[0]
    assert "may differ" in resolve_model("RedHatAI/Qwen3.6-27B-NVFP4").assumptions[0]


def test_what_the_hub_says_comes_before_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(repository: str, *, assumptions: object) -> None:
        raise UsageError(f"The Hugging Face hub has no model '{repository}'.")

    monkeypatch.setattr(hub, "fetch_model", refuse)
    with pytest.raises(UsageError, match="has no model"):
        resolve_model("Qwen/Qwen2.5-7B-Instruct-AWQ")


def test_published_weights_agree_with_what_the_name_says() -> None:
    """Where both a plain and a quantized profile ship, the name's recipe comes within 2 % of the published one."""
    from kvplan.estimate.weights import size_weights

    for name, profile in (("x/Qwen3-30B-A3B-FP8", "qwen3-30b-a3b-fp8"), ("x/Qwen3-32B-FP8", "qwen3-32b-fp8")):
        others = [each for each in PROFILES if each["name"] != profile]
        variant = find_variant(name.replace("x/", "Qwen/"), others)
        assert variant is not None
        by_name = read_profile({**variant.profile, "config": variant.config})
        published = resolve_model(profile)
        expected = size_weights(published, "bfloat16").total_bytes
        assert size_weights(by_name, "bfloat16").total_bytes == pytest.approx(expected, rel=0.02)


def test_metas_fp8_of_the_405b_keeps_its_attention_in_16_bits() -> None:
    """As in its maker's script; vllm issue 6746 counts 109 files: 4.5 GB each, where one byte a weight gave 3.8."""
    from kvplan.estimate.weights import size_weights

    stored = size_weights(resolve_model("meta-llama/Llama-3.1-405B-Instruct-FP8"), "bfloat16")
    assert 440 < stored.total_bytes / 2**30 < 455


@pytest.mark.parametrize(
    ("name", "shape", "kv_dtype"),
    [
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8", "nvidia/Llama-3.1-70B-Instruct-FP8", None),
        ("unsloth/Qwen3.6-27B-NVFP4", "nvidia/Qwen3.6-27B-NVFP4", None),
        ("nvidia/Llama-3.1-70B-Instruct-FP8", None, "fp8"),
        ("llama-3.1-70b-instruct-fp8", None, "fp8"),
    ],
)
def test_another_organisation_lends_no_cache_format(name: str, shape: str | None, kv_dtype: str | None) -> None:
    """NVIDIA's checkpoints ask for an 8-bit cache; those of others that end in the same name need not."""
    spec = resolve_model(name)
    assert spec.quantization is not None
    assert spec.quantization.kv_cache_dtype == kv_dtype
    assert spec.sized_as == shape
    notes = [note for note in spec.assumptions if "another organisation's checkpoint" in note]
    assert len(notes) == (1 if shape is not None else 0)
    assert all(f"that {shape} asks for fp8 says nothing" in note for note in notes)


def test_what_nvidia_usually_asks_for_is_said_where_it_is_not_known() -> None:
    notes = resolve_model("nvidia/Llama-3.3-70B-Instruct-FP4").assumptions
    assert any("most of NVIDIA's quantized checkpoints ask for fp8" in note for note in notes)


@pytest.mark.parametrize(
    ("name", "served", "facts_of"),
    [
        ("llama3.1:8b", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("library/llama3.1:8b-instruct-q4_K_M", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("qwen3:8b", "Qwen/Qwen3-8B", None),
        ("qwen3:30b", "Qwen/Qwen3-30B-A3B", None),
        ("qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct", None),
        ("Gemma3:27b-it-qat", "google/gemma-3-27b-it", None),
        ("gemma4:31b", "google/gemma-4-31B-it", None),
        ("gemma4:26b", "google/gemma-4-26B-A4B", None),
        ("gemma4:e4b", "google/gemma-4-E4B-it", None),
        ("deepseek-r1:70b", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B", None),
        ("deepseek-r1:671b", "deepseek-ai/DeepSeek-R1", None),
        ("llama3.2-vision:11b", "meta-llama/Llama-3.2-11B-Vision-Instruct", None),
        ("mistral:7b", "mistralai/Mistral-7B-v0.3", None),
        ("gpt-oss:20b", "openai/gpt-oss-20b", None),
        ("phi4:14b", "microsoft/phi-4", None),
        ("smollm2:135m", "HuggingFaceTB/SmolLM2-135M-Instruct", None),
    ],
)
def test_a_name_of_ollamas_is_the_checkpoints(name: str, served: str, facts_of: str | None) -> None:
    spec = resolve_model(name)
    assert (spec.served_id.casefold(), spec.sized_as) == (served.casefold(), facts_of)
    note = spec.assumptions[0]
    assert note.startswith(f"{name}, Ollama's name, is sized as {spec.served_id}")
    assert ("to about 4 bits" in note) is (spec.quantization is None), "gpt-oss is published in 4 bits"
    assert "weights as published" in note and (facts_of or "") in note


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("gemma4:14b", "gemma-4-"),
        ("gemma4-31b", "gemma-4-31b"),
        ("llama3.1:latest", "llama-3.1-"),
        ("qwen3:9b", "qwen3-"),
        ("deepseek-r1:8b", "deepseek-r1"),
    ],
)
def test_what_is_not_certain_comes_with_names_of_its_family(name: str, first: str) -> None:
    with pytest.raises(KvplanError) as caught:
        resolve_model(name)
    assert caught.value.message == f"Unknown model '{name}'."
    assert (caught.value.hint or "").startswith(f"did you mean {first}")


def test_somebodys_model_is_not_the_librarys() -> None:
    with pytest.raises(KvplanError):
        resolve_model("someone/llama3.1:8b")


@pytest.mark.parametrize("name", ["unsloth/Qwen3-8B-GGUF:Q4_K_M", "hf.co/unsloth/Qwen3-8B-GGUF:Q4_K_M"])
def test_a_file_of_a_repository_is_sized_as_the_repository(name: str) -> None:
    spec = resolve_model(name)
    assert (spec.served_id, spec.sized_as) == ("unsloth/Qwen3-8B-GGUF", "Qwen/Qwen3-8B")


def test_weights_that_training_was_told_of_have_the_models_shape() -> None:
    """vLLM took 16.63 GiB for it (P042 of the start-ups), and has no kernel for groups of 128 of its 2,112 inputs."""
    spec = resolve_model("cyankiwi/gemma-4-26B-A4B-it-qat-AWQ-INT4")
    assert spec.quantization is not None
    assert (spec.quantization.bits, spec.quantization.group_size) == (4, 32)
    weights = predict_vllm(spec, find_gpu("gb10"), ServingSettings(dtype="float16"), "0.25.1").rank.weight_bytes
    assert weights / GIB == pytest.approx(16.63, rel=0.04)
    assert resolve_model("stelterlab/gemma-4-26B-A4B-it-AWQ").quantization.group_size == 128  # type: ignore[union-attr]

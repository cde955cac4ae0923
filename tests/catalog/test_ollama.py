"""Names of Ollama's library: whose facts are taken, and what is suggested where none are."""

from __future__ import annotations

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.errors import KvplanError


@pytest.mark.parametrize(
    ("name", "served", "facts_of"),
    [
        ("llama3.1:8b", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("library/llama3.1:8b-instruct-q4_K_M", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("qwen3:8b", "Qwen/Qwen3-8B", None),
        ("qwen3:30b", "Qwen/Qwen3-30B-A3B", None),
        ("qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct", None),
        ("Gemma3:27b-it-qat", "google/gemma-3-27b-it", None),
        ("gemma4:31b", "gemma-4-31b-it", "nvidia/Gemma-4-31B-IT-NVFP4"),
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
        ("gemma4:12b", "gemma-4-"),
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

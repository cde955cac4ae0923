"""What vLLM does not serve: architectures that it lacks, formats on older GPUs, versions that are not known."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kvplan.catalog.devices.device_support import check_formats, dtype_on
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.catalog.registry import find_reader
from kvplan.catalog.releases.vllm import latest_vllm, version_note, vllm_release
from kvplan.catalog.vllm_refusals import has_class, service_note
from kvplan.catalog.vllm_registry import GENERATING, registered_models, registry_release
from kvplan.cli import main
from kvplan.commands.printing.known import print_registered
from kvplan.commands.printing.render import OutputFormat
from kvplan.errors import UsageError
from kvplan.estimate.answer import with_quantization
from kvplan.settings import ServingSettings

LAST = "the last release that does is 0.28.0 (--engine vllm@0.28.0)."
NOTE = f"vLLM {latest_vllm()} no longer serves MPTForCausalLM; {LAST}"


@pytest.mark.parametrize(
    ("architecture", "version", "is_served"),
    [
        ("MPTForCausalLM", "0.28.0", True),
        ("MPTForCausalLM", "0.29.0", False),
        ("MllamaForConditionalGeneration", "0.10.2", True),
        ("MllamaForConditionalGeneration", "0.11.0", False),
        ("T5ForConditionalGeneration", "0.10.2", False),
        ("Qwen3NextForCausalLM", "0.10.1", False),
        ("Qwen3NextForCausalLM", "0.10.2", True),
        ("Qwen3NextForCausalLM", "0.10.2rc1.dev3+gabc", True),
        ("Qwen3NextForCausalLM", "0.10.1rc2.dev3+gabc", True),  # a build behind 0.10.1 counts up, and may have it
        ("WhisperForConditionalGeneration", "latest", True),
        ("LlamaForCausalLM", "latest", True),
    ],
)
def test_a_note_from_the_first_release_without_it(architecture: str, version: str, is_served: bool) -> None:
    assert has_class(architecture, version) is is_served
    assert (service_note(architecture, version) is None) is is_served


def test_a_release_before_the_first_is_named(said_by: Callable[..., str]) -> None:
    note = (
        "vLLM 0.9.2 has no class of Qwen3NextForCausalLM; the first release that has one is 0.10.2 "
        "(--engine vllm@0.10.2)."
    )
    assert service_note("Qwen3NextForCausalLM", "0.9.2") == note
    words = "qwen3-next-80b-a3b --gpu 4xh100 --ctx 8k --engine vllm@0.9.2"
    assert f"note: {note}" in said_by("estimate", *words.split(), code=0)


@pytest.mark.parametrize("words", ["estimate mpt-7b --gpu h100", "plan mpt-7b --users 4 --ctx-avg 1k --gpu h100"])
def test_both_commands_say_it(words: str, capsys: pytest.CaptureFixture[str], said_by: Callable[..., str]) -> None:
    assert main([*words.split(), "--json"]) == 0
    printed = capsys.readouterr()
    assert f"note: {NOTE}" in printed.err and NOTE in json.loads(printed.out)["assumptions"]
    assert "no longer serves" not in said_by(*words.split(), "--engine", "vllm@0.28", code=0)


def test_of_other_engines_nothing_is_said(said_by: Callable[..., str]) -> None:
    assert "no longer serves" not in said_by("estimate mpt-7b --gpu h100 --engine kvplan", code=0)


def test_vllms_list_says_what_is_sized_and_why_not() -> None:
    found = {(each.kind, each.architecture): each for each in registered_models()}
    assert len({kind for kind, _ in found}) == 9 and len(found) > 400
    assert found["multimodal", "DeepseekV41ForCausalLM"].is_sized
    for (kind, name), each in found.items():
        assert each.is_sized == (find_reader(name) is not None), name
        assert each.is_sized or each.why, name
        if each.is_sized and kind in GENERATING:
            assert has_class(name, registry_release()), name


def test_the_list_is_printed_by_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [each for each in registered_models() if "DeepseekV41" in each.architecture]
    print_registered(asked, registry_release(), OutputFormat.json)
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["release"]) == ("kvplan.vllm_registry/1", latest_vllm())
    assert [row["sized"] for row in document["architectures"]] == [True]


LLAMA = resolve_model("llama-3.1-8b")


@pytest.mark.parametrize(
    ("gpu", "model", "version", "dtype"),
    [
        ("t4", "llama-3.1-8b", "latest", "float16"),
        ("v100", "llama-3.1-8b", "0.9.0", "float16"),
        ("t4", "gemma-2-2b", "latest", "float32"),
        ("l4", "llama-3.1-8b", "latest", "bfloat16"),
        ("mi300x", "llama-3.1-8b", "0.6.0", "bfloat16"),
        ("cpu", "llama-3.1-8b", "latest", "bfloat16"),
    ],
)
def test_gpus_without_bfloat16_are_served_in_what_vllm_falls_back_to(
    gpu: str, model: str, version: str, dtype: str
) -> None:
    assert dtype_on(find_gpu(gpu), resolve_model(model), "bfloat16", asked="auto", version=version) == dtype


@pytest.mark.parametrize(("asked", "version"), [("bfloat16", "latest"), ("auto", "0.8.5")])
def test_bfloat16_on_a_t4_is_refused_as_vllm_does(asked: str, version: str) -> None:
    with pytest.raises(UsageError, match=r"needs compute capability 8.0, and t4 has 7.5") as caught:
        dtype_on(find_gpu("t4"), LLAMA, "bfloat16", asked=asked, version=version)
    assert caught.value.hint == "use --dtype half"


@pytest.mark.parametrize(
    ("gpu", "quantization", "kv_cache_dtype", "version", "refused"),
    [
        ("v100", "fp8", "float16", "latest", "fp8 weights"),
        ("v100", "awq", "float16", "latest", "awq weights"),
        ("v100", "gptq", "float16", "latest", None),
        ("v100", "none", "fp8", "latest", "a KV cache in fp8"),
        ("t4", "fp8", "float16", "latest", None),
        ("t4", "fp8", "float16", "0.11", "fp8 weights"),
        ("a100-80", "fp8", "fp8", "latest", None),
        ("mi300x", "fp8", "fp8", "latest", None),
    ],
)
def test_formats_without_kernels_on_an_old_gpu_are_refused(
    gpu: str, quantization: str, kv_cache_dtype: str, version: str, refused: str | None
) -> None:
    spec = with_quantization(LLAMA, ServingSettings(quantization=quantization))
    if refused is None:
        check_formats(find_gpu(gpu), spec, kv_cache_dtype, version=version)
        return
    with pytest.raises(UsageError, match=f"no kernels for {refused} on {find_gpu(gpu).id}"):
        check_formats(find_gpu(gpu), spec, kv_cache_dtype, version=version)


def test_a_version_newer_than_the_newest_known_is_sized_as_that_and_said() -> None:
    assert vllm_release("0.99").text == vllm_release("latest").text == latest_vllm()
    assert latest_vllm() in (version_note("0.99") or "")
    assert [version_note(known) for known in ("latest", latest_vllm(), "0.19", "0.2.5", "0.1.dev18496+gabc")] == [
        None
    ] * 5
    assert "older" in (version_note("0.1.7") or "")

"""The kernels of a mixture's experts: those asked for, and those of the engine's release."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.errors import UsageError
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.engine_speed import engine_speed_model
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.kernels.expert_backends import check_backend, with_backend
from kvplan.estimate.speed.steps.rank_step import ExpertSpeed
from kvplan.estimate.speed.steps.work import model_work

BLOCKS = "deepseek-r1"


def _found(
    engine: str, asked: str = "auto", *, model: str = BLOCKS, gpu: str = "b200", ep: bool = False
) -> tuple[DeviceSpeed, DeviceSpeed]:
    """(as fitted, with the kernels asked for); ``engine``: NAME or NAME@VERSION."""
    name, _, version = engine.partition("@")
    spec, profile = resolve_model(model), find_gpu(gpu)
    work = model_work(spec, 10**10, "bfloat16", ParallelLayout(8, enable_expert_parallel=ep))
    measured = load_measured(None).for_gpu(profile, work.speed_format, name)
    assert measured is not None
    fitted = DeviceSpeed.of(measured, spec.id, work.speed_format)
    return fitted, with_backend(fitted, work, profile, EngineChoice(name, version or "latest"), asked)


def _experts(speed: DeviceSpeed) -> ExpertSpeed:
    assert speed.speed.experts is not None
    return speed.speed.experts


@pytest.mark.parametrize(
    ("engine", "asked", "by_trtllm"),
    [
        ("trtllm@1.2.0", "auto", False),
        ("trtllm@1.3.0", "auto", True),
        ("trtllm", "auto", True),
        ("trtllm@1.1.0", "flashinfer_trtllm", True),
        ("trtllm@1.3.0", "deep_gemm", False),
    ],
)
def test_tensorrt_llm_chooses_its_own_kernels_for_blocks_from_1_3_on(engine: str, asked: str, by_trtllm: bool) -> None:
    fitted, found = _found(engine, asked)
    assert (_experts(found) != _experts(fitted)) == by_trtllm
    assert found.note == fitted.note


@pytest.mark.parametrize(("tokens", "read_experts", "measured_us"), [(4, 30, (133, 51)), (64, 222, (349, 177))])
def test_what_trtllms_kernels_take_less_is_what_the_tables_say(
    tokens: int, read_experts: int, measured_us: tuple[float, float]
) -> None:
    """Of 256 experts over 8 ranks: TensorRT-LLM's table by DeepGEMM, and vLLM's and SGLang's by TRTLLM."""
    fitted, found = _found("trtllm@1.1.0", "flashinfer_trtllm")
    read = read_experts * 3 * 7168 * 2048 / 8
    before, after = (each.layer_seconds + read / each.bandwidth for each in (_experts(fitted), _experts(found)))
    assert 1e6 * (before - after) == pytest.approx(measured_us[0] - measured_us[1], rel=0.25)


@pytest.mark.parametrize(
    ("engine", "asked", "model", "gpu", "ep"),
    [
        ("trtllm", "cutlass", BLOCKS, "b200", False),
        ("trtllm@1.1.0", "flashinfer_trtllm", BLOCKS, "b200", True),
        ("sglang", "deep_gemm", BLOCKS, "h200", False),
        ("vllm", "marlin", "qwen3-30b-a3b", "b200", False),
        ("vllm", "flashinfer_cutlass", "qwen3-30b-a3b", "h200", False),
    ],
)
def test_kernels_that_nobody_measured_are_named(engine: str, asked: str, model: str, gpu: str, ep: bool) -> None:
    fitted, found = _found(engine, asked, model=model, gpu=gpu, ep=ep)
    usual = _found(engine.replace("trtllm@1.1.0", "trtllm@1.2.0"), model=model, gpu=gpu, ep=ep)[1]
    gap = f"experts by {asked} were not measured in {engine.partition('@')[0]} on {gpu}"
    assert gap in found.note and gap in found.short_note
    assert fitted.note in found.note
    if engine != "trtllm":
        assert found.speed == usual.speed


@pytest.mark.parametrize(("engine", "gpu"), [("sglang", "h200"), ("vllm", "h200"), ("sglang", "b200")])
def test_the_tables_own_kernels_may_be_named(engine: str, gpu: str) -> None:
    name = "triton" if gpu == "h200" else "flashinfer_trtllm"
    fitted, found = _found(engine, name, gpu=gpu)
    assert found is fitted


def test_vllms_kernels_on_b200_are_those_asked_for_in_any_release() -> None:
    old, asked = (_found(*each, model="qwen3-30b-a3b-fp8")[1] for each in (("vllm@0.22.0",), ("vllm", "triton")))
    newest = _found("vllm", model="qwen3-30b-a3b-fp8")[1]
    assert old == asked
    assert _experts(asked).flops < 0.7 * _experts(newest).flops


def test_models_without_experts_and_kvplans_engine_have_no_such_choice(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="has no experts"):
        check_backend(resolve_model("llama-3.1-8b"), "triton", "vllm")
    with pytest.raises(UsageError, match="kvplan's engine"):
        check_backend(resolve_model("qwen3-30b-a3b"), "triton", "kvplan")
    check_backend(resolve_model("llama-3.1-8b"), "auto", "kvplan")
    assert main(["estimate", "qwen3-30b-a3b", "--gpu", "b200", "--ctx", "8k", "--moe-backend", "marlin"]) == 0
    assert "experts by marlin were not measured in vllm on b200" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_cutlass_in_4_bits_takes_longer_than_trtllm(engine: str) -> None:
    """Llama-4-Scout alone, 48 layers: 12.84 ms a token, and 7.60."""
    fitted, found = _found(engine, "cutlass", model="nvidia/Kimi-K2.5-NVFP4")
    more = _experts(found).layer_seconds - _experts(fitted).layer_seconds
    assert 48 * more == pytest.approx(12.84e-3 - 7.60e-3, rel=0.01)
    assert found.short_note.endswith("take 0.109 ms a layer more, as one sequence did alone")


@pytest.mark.parametrize(("model", "times"), [("gemma-4-26b-a4b-nvfp4", 4.0), ("gemma-4-26b-a4b", 1.0)])
def test_marlin_multiplies_in_16_bits_where_no_kernels_were_measured(model: str, times: float) -> None:
    """A GB10 has no tables, and four times as many operations in 4-bit floats; decoding reads as many bytes."""
    spec, gpu = resolve_model(model), find_gpu("gb10")
    work = model_work(spec, 16 * 10**9, "bfloat16", ParallelLayout())
    by_engine, by_marlin = (
        engine_speed_model(EngineChoice("vllm", "0.26.0"), work, gpu, 8192, 100, 5e4, None, asked).speed(1)
        for asked in ("auto", "marlin")
    )
    ratio = by_marlin.ttft_seconds.low / by_engine.ttft_seconds.low
    assert ratio == pytest.approx(times, rel=0.2)
    assert by_marlin.tpot_seconds.low == pytest.approx(by_engine.tpot_seconds.low, rel=0.01)

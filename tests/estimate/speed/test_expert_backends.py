"""The kernels of a mixture's experts: asked for, of the engine's release, of its format and its generation of GPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.sglang import sglang_release
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.errors import UsageError
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.engine_speed import engine_speed_model
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.kernels.blackwell_experts import blackwell_experts
from kvplan.estimate.speed.steps.kernels.expert_backends import check_backend, with_backend
from kvplan.estimate.speed.steps.kernels.few_bits import with_few_bits
from kvplan.estimate.speed.steps.kernels.sglang_experts import runs_trtllm_on_blackwell
from kvplan.estimate.speed.steps.rank_step import ExpertSpeed, KernelSpeed
from kvplan.estimate.speed.steps.step_time import Speed
from kvplan.estimate.speed.steps.work import ModelWork, model_work

BLOCKS = "deepseek-r1"


def _work(model: str, ranks: int = 8) -> ModelWork:
    return model_work(resolve_model(model), 10**10, "bfloat16", ParallelLayout(ranks))


def _fitted(work: ModelWork, gpu: str, engine: str, model: str) -> DeviceSpeed:
    """By the table of this GPU and engine."""
    measured = load_measured(None).for_gpu(find_gpu(gpu), work.speed_format, engine)
    assert measured is not None
    return DeviceSpeed.of(measured, model, work.speed_format)


def _found(
    engine: str, asked: str = "auto", *, model: str = BLOCKS, gpu: str = "b200", ep: bool = False
) -> tuple[DeviceSpeed, DeviceSpeed]:
    """(as fitted, with the kernels asked for); ``engine``: NAME or NAME@VERSION."""
    name, _, version = engine.partition("@")
    spec, profile = resolve_model(model), find_gpu(gpu)
    work = model_work(spec, 10**10, "bfloat16", ParallelLayout(8, enable_expert_parallel=ep))
    fitted = _fitted(work, gpu, name, spec.id)
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


def test_models_without_experts_and_kvplans_engine_have_no_such_choice(printed_by: Callable[..., str]) -> None:
    with pytest.raises(UsageError, match="has no experts"):
        check_backend(resolve_model("llama-3.1-8b"), "triton", "vllm")
    with pytest.raises(UsageError, match="kvplan's engine"):
        check_backend(resolve_model("qwen3-30b-a3b"), "triton", "kvplan")
    check_backend(resolve_model("llama-3.1-8b"), "auto", "kvplan")
    assert "experts by marlin were not measured in vllm on b200" in printed_by(
        "estimate qwen3-30b-a3b --gpu b200 --ctx 8k --moe-backend marlin"
    ).replace("\n", " ")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_cutlass_in_4_bits_takes_longer_than_trtllm(engine: str) -> None:
    """Llama-4-Scout alone, 48 layers: 12.84 ms a token, and 7.60."""
    fitted, found = _found(engine, "cutlass", model="nvidia/Kimi-K2.5-NVFP4")
    more = _experts(found).layer_seconds - _experts(fitted).layer_seconds
    assert 48 * more == pytest.approx(12.84e-3 - 7.60e-3, rel=0.01)
    assert found.short_note.endswith("take 0.109 ms a layer more, as one sequence did alone")


@pytest.mark.parametrize(("model", "times"), [("gemma-4-26b-a4b-nvfp4", 2.0), ("gemma-4-26b-a4b", 1.0)])
def test_marlin_multiplies_in_16_bits_where_no_kernels_were_measured(model: str, times: float) -> None:
    """A GB10 has no tables, and four times the operations in 4-bit floats; activations and decoding do not change."""
    spec, gpu = resolve_model(model), find_gpu("gb10")
    work = model_work(spec, 16 * 10**9, "bfloat16", ParallelLayout())
    by_engine, by_marlin = (
        engine_speed_model(EngineChoice("vllm", "0.26.0"), work, gpu, 8192, 100, 5e4, None, asked).speed(1)
        for asked in ("auto", "marlin")
    )
    ratio = by_marlin.ttft_seconds.low / by_engine.ttft_seconds.low
    assert ratio == pytest.approx(times, rel=0.2)
    assert by_marlin.tpot_seconds.low == pytest.approx(by_engine.tpot_seconds.low, rel=0.01)


def _of_sglang(
    model: str, gpu: str, version: str, asked: str = "auto", ranks: int = 8
) -> tuple[ExpertSpeed, ExpertSpeed]:
    """(as fitted, as ``version`` runs them)."""
    work = _work(model, ranks)
    fitted = _fitted(work, gpu, "sglang", model)
    found = with_backend(fitted, work, find_gpu(gpu), EngineChoice("sglang", version), asked)
    return _experts(fitted), _experts(found)


@pytest.mark.parametrize(
    ("model", "first"),
    [
        ("deepseek-r1", "0.5.4"),
        ("kimi-k2", "0.5.4"),
        ("qwen3-30b-a3b-fp8", "0.5.6"),
        ("qwen3-235b-a22b", "0.5.14"),
        ("qwen3-next-80b-a3b", "0.5.14"),
        ("glm-4.5", "0.5.14"),
        ("nemotron-3-nano-30b-a3b-bf16", "0.5.13"),
        ("mimo-v2-flash", "latest"),
        ("minimax-m2.5", None),
        ("mixtral-8x7b", None),
    ],
)
def test_tensorrt_llms_experts_on_blackwell_have_a_rule_for_each_class(model: str, first: str | None) -> None:
    releases = ("0.5.3", "0.5.4", "0.5.5", "0.5.6", "0.5.13", "0.5.14", "latest")
    found = [runs_trtllm_on_blackwell(_work(model), sglang_release(version)) for version in releases]
    expected = [False] * len(releases)
    if first is not None:
        expected = [index >= releases.index(first) for index in range(len(releases))]
    assert found == expected


def test_triton_on_blackwell_takes_what_its_table_has_more() -> None:
    """Of 256 experts of 1,536 over four ranks, in blocks: 34 us of one token and 27, 214 and 132 of 64."""
    by_trtllm, by_triton = _of_sglang("minimax-m2.5", "b200", "0.5.14", ranks=4)
    assert by_triton.layer_seconds - by_trtllm.layer_seconds == pytest.approx(34e-6 - 27e-6, rel=0.05)
    assert by_triton.bandwidth / by_trtllm.bandwidth == pytest.approx((132 - 27) / (214 - 34), rel=0.2)


def test_a_kernel_that_is_asked_for_is_taken_whatever_the_release_would_choose() -> None:
    fitted, asked = _of_sglang("minimax-m2.5", "b200", "0.5.14", "flashinfer_trtllm")
    assert asked == fitted
    by_trtllm, by_triton = _of_sglang("deepseek-r1", "b200", "0.5.14", "triton")
    assert by_triton.layer_seconds > by_trtllm.layer_seconds


@pytest.mark.parametrize(("model", "more_us"), [("deepseek-r1", 12.6), ("qwen3-235b-a22b", 3.4)])
def test_launches_around_triton_were_more_before_0_5_14(model: str, more_us: float) -> None:
    """53 us of one token of DeepSeek-R1 over eight ranks in 0.5.10 and 37 in 0.5.14; three copies are 6.6."""
    fitted, newest = _of_sglang(model, "h200", "0.5.14")
    older = _of_sglang(model, "h200", "0.5.10")[1]
    assert newest == fitted
    assert 1e6 * (older.layer_seconds - fitted.layer_seconds) == pytest.approx(more_us)
    assert older.flops < fitted.flops and older.bandwidth < fitted.bandwidth


def test_whole_steps_that_were_measured_have_these_launches() -> None:
    fitted, found = _of_sglang("deepseek-r1", "h200", "0.4.5")
    assert found == fitted


def test_an_a100s_table_is_of_the_older_launches_itself() -> None:
    fitted, found = _of_sglang("qwen3-30b-a3b", "a100-80gb-sxm", "0.5.6")
    assert found == fitted


ON_BLACKWELL = ExpertSpeed(1e-5, 6e12, 9e14)


def _speed(dtype: str = "bfloat16", engine: str = "vllm") -> DeviceSpeed:
    speed = KernelSpeed(Speed(0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0), ON_BLACKWELL)
    return DeviceSpeed(speed, "kernels", dtype, "note", {}, engine, "0.24.0")


@pytest.mark.parametrize(
    ("model", "release", "few_us", "many_us"),
    [  # of 128 experts of 1536, 8 chosen, over 4 ranks: 16 tokens, and 12,288 more
        ("qwen3-30b-a3b", "0.24.0", 101, 1537 - 471),
        ("qwen3-30b-a3b", "0.22.0", 125, 2542 - 807),
        ("qwen3-30b-a3b-fp8", "0.24.0", 73, 1985 - 569),
        ("qwen3-30b-a3b-fp8", "0.22.0", 92, 3560 - 1056),
    ],
)
def test_experts_come_near_the_tables_they_were_not_fitted_to(
    model: str, release: str, few_us: float, many_us: float
) -> None:
    """Beside those in 16 bits of 0.24, which the fit is of; in 8 bits they read half as much."""
    gpu, work = find_gpu("b200"), _work(model)
    found = blackwell_experts(_speed(), work, gpu, vllm_release(release)).speed.experts
    assert found is not None
    bits = 8 if work.compute_dtype == "fp8" else 16
    assert bits / 16 * 101 * ON_BLACKWELL.bandwidth / found.bandwidth == pytest.approx(few_us, rel=0.15)
    by_clock = gpu.flops(work.compute_dtype) / gpu.flops("bfloat16")
    assert (1537 - 471) * ON_BLACKWELL.flops / (by_clock * found.flops) == pytest.approx(many_us, rel=0.2)


@pytest.mark.parametrize(
    ("speed", "model", "gpu"),
    [
        (_speed(), "qwen3-30b-a3b-fp8", "h200"),
        (_speed("fp8-block"), "qwen3-30b-a3b-fp8", "b200"),
        (_speed(engine="sglang"), "qwen3-30b-a3b-fp8", "b200"),
        (_speed(), "llama-3.1-8b", "b200"),
        (_speed(), "gpt-oss-20b", "b200"),
    ],
)
def test_other_fits_stay(speed: DeviceSpeed, model: str, gpu: str) -> None:
    assert blackwell_experts(speed, _work(model), find_gpu(gpu), vllm_release("0.19.0")) is speed


INTEGERS = "Qwen/Qwen3-Coder-30B-A3B-Instruct-AWQ"


def _in_few_bits(engine: str, gpu: str, model: str = "gpt-oss-120b") -> tuple[ExpertSpeed, ExpertSpeed]:
    """(as fitted in 16 bits, those of the model's weights)."""
    name, _, version = engine.partition("@")
    work = _work(model, 1)
    fitted = _fitted(work, gpu, name, model)
    found = with_few_bits(fitted, work, find_gpu(gpu), EngineChoice(name, version or "latest"))
    return _experts(fitted), _experts(found)


def test_formats_are_told_apart() -> None:
    assert [_work(each, 1).four_bits for each in ("gpt-oss-120b", INTEGERS)] == ["mxfp4", "int4"]
    assert {_work(each, 1).four_bits for each in ("qwen3-30b-a3b", "minimax-m2.5", "nvidia/Kimi-K2.5-NVFP4")} == {""}


@pytest.mark.parametrize(("gpu", "reached"), [("h100-sxm", 2.54 / 3.55), ("h200", 2.69 / 5.12)])
def test_triton_kernels_read_mxfp4_no_faster_than_their_table(gpu: str, reached: float) -> None:
    fitted, found = _in_few_bits("vllm@0.24.0", gpu)
    assert found.bandwidth / fitted.bandwidth == pytest.approx(reached, rel=0.05)


@pytest.mark.parametrize(("gpu", "reached"), [("h100-sxm", 1.0), ("h200", 4.05 / 5.12)])
def test_marlin_hides_less_of_a_faster_memory(gpu: str, reached: float) -> None:
    for engine in ("vllm@0.24.0", "sglang@0.5.14"):
        fitted, found = _in_few_bits(engine, gpu, INTEGERS)
        assert found.bandwidth / fitted.bandwidth == pytest.approx(reached, rel=0.05)


def test_hoppers_kernel_for_mxfp4_goes_by_vllms_release() -> None:
    marlin, older, newer = (_in_few_bits(f"vllm@{version}", "h200")[1] for version in ("0.11.0", "0.11.1", "0.24.0"))
    assert marlin.bandwidth > older.bandwidth == newer.bandwidth
    assert older.layer_seconds > marlin.layer_seconds > newer.layer_seconds


def test_triton_kernels_beside_marlin_as_measured() -> None:
    """Of eight sequences of gpt-oss-120b: 1.17 and 1.58 s for 128 tokens through 36 layers, 89 us a layer."""
    work = _work("gpt-oss-120b", 1)
    read = work.touched_experts(8) * 128 * 3 * 2880 * 2880 * 4.25 / 8
    marlin, older = (_in_few_bits(f"vllm@{version}", "h200")[1] for version in ("0.11.0", "0.11.1"))
    seconds = [each.layer_seconds + read / each.bandwidth for each in (marlin, older)]
    assert seconds[1] - seconds[0] == pytest.approx((1.58 - 1.17) / 128 / 36, rel=0.35)


def test_other_formats_and_gpus_without_a_table_are_left_as_they_are() -> None:
    for engine, gpu, model in (
        ("vllm", "h200", "qwen3-30b-a3b"),
        ("vllm", "l40s", "gpt-oss-120b"),
        ("trtllm", "h200", INTEGERS),
    ):
        fitted, found = _in_few_bits(engine, gpu, model)
        assert found == fitted

"""``--engine-arg`` and ``--engine-command``: what cannot be read, or what the sweep itself says, is refused."""

from __future__ import annotations

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.commands.options.sweeps import settled
from kvplan.engines.arguments import given_settings, settle_arguments
from kvplan.engines.llamacpp.options import server_options
from kvplan.engines.registry import swept_engine
from kvplan.engines.vllm.model import VllmModel
from kvplan.errors import UsageError
from kvplan.machine.device import Device
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.options import SweepOptions


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("argument", ["port=1", "--port=1", "host=0.0.0.0", "served_model_name=x", "api-key=x"])
def test_the_address_is_the_sweeps(engine: str, argument: str) -> None:
    with pytest.raises(UsageError, match="is set by the sweep"):
        swept_engine(SweepOptions(model="gpt2", engine=engine, engine_args=(argument,)))


@pytest.mark.parametrize(
    ("engine", "argument"),
    [("vllm", "max-num-seqs=4"), ("vllm", "gpu_memory_utilization=0.5"), ("sglang", "mem-fraction-static=0.5"),
     ("trtllm", "max_batch_size=4")],
)  # fmt: skip
def test_a_row_names_the_settings_that_the_server_had(engine: str, argument: str) -> None:
    with pytest.raises(UsageError, match="is set by the sweep"):
        swept_engine(SweepOptions(model="gpt2", engine=engine, engine_args=(argument,)))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--",), "'--' is not KEY=VALUE"),
        (("a b",), "'a b' is not KEY=VALUE"),
        (("=x",), "'=x' is not KEY=VALUE"),
        (("",), "'' is not KEY=VALUE"),
        (("-O3",), "'-O3' is not KEY=VALUE"),
        (("swap-space=1", "--swap_space=2"), "swap-space is given twice"),
    ],
)
def test_an_argument_that_is_no_option(arguments: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        swept_engine(SweepOptions(model="gpt2", engine="vllm", engine_args=arguments))


def test_values_are_passed_on_as_they_are() -> None:
    options = SweepOptions(model="gpt2", engine="vllm", engine_args=("enforce-eager", 'x={"a": "b = c"}'))
    assert swept_engine(options) is not None


@pytest.mark.parametrize("engine", ["vllm", "llamacpp", "sglang", "trtllm"])
def test_a_command_with_an_open_quote(engine: str) -> None:
    with pytest.raises(UsageError, match="cannot be read: No closing quotation"):
        swept_engine(SweepOptions(model="gpt2", engine=engine, engine_command="llama 'x"))


@pytest.mark.parametrize(
    ("engine", "argument", "axis", "text"),
    [
        ("vllm", "kv_cache_memory_bytes=300000000", "kv_cache_memory_bytes", "300000000"),
        ("vllm", "kv-cache-memory=300m", "kv_cache_memory_bytes", "300000000"),
        ("vllm", "--max-model-len=4k", "max_model_len", "4000"),
        ("vllm", "gpu_memory_utilization=0.5", "gpu_memory_utilization", "0.5"),
        ("vllm", "tp=2", "tensor_parallel_size", "2"),
        ("vllm", "enable-expert-parallel", "enable_expert_parallel", "true"),
        ("sglang", "mem-fraction-static=0.5", "gpu_memory_utilization", "0.5"),
        ("sglang", "context-length=2048", "max_model_len", "2048"),
        ("trtllm", "max_batch_size=4", "max_num_seqs", "4"),
        ("llamacpp", "np=4", "max_num_seqs", "4"),
        ("llamacpp", "batch-size=512", "max_num_batched_tokens", "512"),
    ],
)
def test_an_argument_that_is_a_setting_is_that_setting(engine: str, argument: str, axis: str, text: str) -> None:
    found = settle_arguments(engine, ("seed=1", argument), {"block_size": "32"})
    assert found.axes == {"block_size": "32", axis: text}
    assert found.arguments == ("seed=1",)
    options = SweepOptions(model="gpt2", engine=engine, axes={axis: text}, engine_args=found.arguments)
    assert options.parsed_axes()[axis], "it is swept, so it is in the plan, in the row and in the command"


def test_what_an_engine_is_given_is_what_is_predicted() -> None:
    """300,000,000 bytes are 8,064 tokens of gpt2 in bfloat16 with blocks of 128: what vLLM 0.33 printed for them."""
    given = {"model": "gpt2", "engine": "vllm", "engine_args": ("kv_cache_memory_bytes=300000000", "enforce-eager")}
    options, axes = settled(given, {}, "vllm")
    assert options["engine_args"] == ("enforce-eager",)
    (given_bytes,) = SweepOptions(**options, axes=axes).parsed_axes()["kv_cache_memory_bytes"]
    model = VllmModel(resolve_model("gpt2"), Device("cpu", "a processor", 8 << 30, 2, 8 << 30), "0.33.0")
    settings = TrialSettings(0.9, 8, 128, 512, 2048, kv_cache_memory_bytes=int(given_bytes))
    assert model.memory(settings).kv_cache_tokens == 8064


def test_a_contradiction_of_a_swept_axis_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"--engine-arg max-num-seqs=4 contradicts --max-num-seqs 8,16\.") as caught:
        settle_arguments("vllm", ("max-num-seqs=4",), {"max_num_seqs": "8,16"})
    assert caught.value.hint == "leave one of them out"
    same = settle_arguments("vllm", ("max-num-seqs=4", "swap-space=1"), {"max_num_seqs": "4"})
    assert (same.axes, same.arguments) == ({"max_num_seqs": "4"}, ("swap-space=1",))
    with pytest.raises(UsageError, match="max-num-seqs=many is no value of max_num_seqs"):
        settle_arguments("vllm", ("max-num-seqs=many",), {})


@pytest.mark.parametrize(
    ("arguments", "axes", "length", "left"),
    [
        (("np=4", "ctx-size=8192", "fa=on"), {}, "2048", ("fa=on",)),
        (("c=8192",), {"max_num_seqs": "2"}, "4096", ()),
        (("ctx-size=8192",), {"max_num_seqs": "4", "max_model_len": "2k"}, "2048", ()),
        (("ctx-size=8192",), {"max_num_seqs": "2,4"}, None, ("ctx-size=8192",)),
        (("ctx-size=8192",), {}, None, ("ctx-size=8192",)),
        (("ctx-size=1000",), {"max_num_seqs": "4"}, None, ("ctx-size=1000",)),
        (("ctx-size=8192", "kv-unified"), {"max_num_seqs": "4"}, None, ("ctx-size=8192", "kv-unified")),
    ],
)
def test_the_context_of_llamacpp_is_that_of_its_slots(
    arguments: tuple[str, ...], axes: dict[str, str], length: str | None, left: tuple[str, ...]
) -> None:
    found = settle_arguments("llamacpp", arguments, axes)
    assert (found.axes.get("max_model_len"), found.arguments) == (length, left)
    if length is not None:
        (seqs,) = SweepOptions(model="gpt2", axes=found.axes).parsed_axes()["max_num_seqs"]
        settings = TrialSettings(0.9, int(seqs), 1, int(length), 512)
        assert server_options(settings, {})["ctx-size"] == "8192", "what was given"


def test_a_context_that_contradicts_the_length_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="ctx-size=8192 is 2048 tokens for each of 4 slots, and --max-model-len is 1k"):
        settle_arguments("llamacpp", ("ctx-size=8192",), {"max_num_seqs": "4", "max_model_len": "1k"})


def test_settings_that_no_sweep_varies_are_predicted_with() -> None:
    arguments = ("enforce-eager", "cpu-offload-gb=4", "enable-prefix-caching=false", "max-num-seqs=3", "no-such=1")
    found = given_settings(arguments)
    assert found["enforce_eager"] is True and found["cpu_offload_gb"] == 4
    assert found["enable_prefix_caching"] is False
    assert "max_num_seqs" not in found, "which is an axis"

"""``--engine-arg`` and ``--engine-command``: what cannot be read, or what the sweep itself says, is refused."""

from __future__ import annotations

import pytest

from kvplan.engines.registry import swept_engine
from kvplan.errors import UsageError
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

"""Lines to paste: the command of kvplan that gives the same answer, and the one that starts vLLM so."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kvplan.estimate.answer import EstimateAnswer
from kvplan.estimate.parallel import ParallelLayout
from kvplan.settings import KNOBS

_OF_VLLM: Final = (
    "dtype",
    "kv_cache_dtype",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enforce_eager",
    "cpu_offload_gb",
    "language_model_only",
)
"""Settings that vLLM has under the same name, and that stand in its command where they were given."""


def kvplan_command(command: str, model: str | None, arguments: Mapping[str, Any]) -> str:
    """``kvplan estimate llama-3.1-8b --gpu h100 --ctx 16k``, from the arguments of the Python function."""
    words = ["kvplan", command, *([] if model is None else [model])]
    for name, value in arguments.items():
        words += _words(name, value)
    return shlex.join(words)


def _words(name: str, value: Any) -> Iterator[str]:
    knob = KNOBS.get(name)
    option = knob.option if knob is not None else "--" + name.replace("_", "-")
    if value is True:
        yield option
    elif value is False:
        yield option.replace("--", "--no-", 1)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from (option, f"{key}={each}")
    elif value is not None:
        yield option
        yield ",".join(map(_text, value)) if isinstance(value, (list, tuple)) else _text(value)


def _text(value: Any) -> str:
    """Write it as a person writes it: 2 and not 2.0."""
    return f"{value:g}" if isinstance(value, float) and value == int(value) else str(value)


def vllm_command(answer: EstimateAnswer, model: str, arguments: Mapping[str, Any]) -> str:
    """``vllm serve MODEL ...`` for the first deployment of ``answer``: length, sizes, and what was asked for."""
    layout = ParallelLayout.of(answer.deployments[0].settings)
    asked, options = str(arguments.get("quantization") or "auto"), list[str]()
    served = model
    if asked not in ("auto", "none"):
        published = answer.spec.quantization
        if asked == "fp8" and (published is None or published.method == asked):  # made while loading, or there already
            options = ["--quantization", asked] if published is None else []
        elif published is None or published.method != asked:
            served = f"<a build of {model} in {asked}>"
    words = ["vllm", "serve", served, "--max-model-len", str(answer.context_tokens)]
    sizes = {
        "--tensor-parallel-size": layout.tensor_parallel_size,
        "--pipeline-parallel-size": layout.pipeline_parallel_size,
        "--data-parallel-size": layout.data_parallel_size,
    }
    words += [word for option, size in sizes.items() if size > 1 for word in (option, str(size))]
    words += ["--enable-expert-parallel"] if layout.enable_expert_parallel else []
    for name in _OF_VLLM:
        if name in arguments and arguments[name] != KNOBS[name].default:
            words += _words(name, arguments[name])
    return shlex.join([*words, *options])

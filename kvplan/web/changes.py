"""What would change the answer: the same question with one thing changed, asked anew, beside what it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvplan.api import Estimate
from kvplan.errors import KvplanError
from kvplan.estimate.parallel import ParallelLayout
from kvplan.web.wording import number, tokens

_LEAST_CONTEXT: Final = 2048
_MORE_GPUS: Final = (2, 4, 8)
_WORTH_SAYING: Final = 1.02
"""Of the sequences there were; less is no change that a reader would make."""


@dataclass(frozen=True, slots=True)
class _Change:
    text: str
    arguments: dict[str, Any]


def changed_deployments(ask: Callable[[dict[str, Any]], Estimate], arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each change that helps, the most first: its words, what it is worth, and the arguments that ask for it.

    Where nothing fits, those that need no more GPUs come first. Each is a whole estimate of its own, so that nothing is
    scaled. One that cannot be asked is left out.
    """
    before = ask(arguments)
    base = before.deployments[0]
    found: list[tuple[bool, float, dict[str, Any]]] = []
    for change in _changes(before, arguments):
        try:
            after = ask(change.arguments).deployments[0]
        except KvplanError:
            continue
        if not after.fits:
            continue
        if base.fits and base.max_concurrency:
            factor = after.max_concurrency / base.max_concurrency
            worth = f"{factor:.1f} x" if factor >= 1.1 else f"{factor:.2f} x"
        else:
            factor, worth = after.max_concurrency, f"fits {number(after.max_concurrency)}"
        if not base.fits or factor >= _WORTH_SAYING:
            entry = {"text": change.text, "worth": worth, "sequences": number(after.max_concurrency)}
            needs_gpus = not base.fits and change.arguments.get("gpu") != arguments.get("gpu")
            found.append((needs_gpus, -factor, entry | {"arguments": change.arguments}))
    return [entry for *_, entry in sorted(found, key=lambda each: each[:2])]


def _changes(before: Estimate, arguments: Mapping[str, Any]) -> Iterator[_Change]:
    deployment, settings = before.deployments[0], before.deployments[0].settings

    def _with(text: str, **changed: Any) -> _Change:
        return _Change(text, {**arguments, **changed})

    if arguments.get("kv_cache_dtype", "auto") == "auto":
        yield _with("KV cache in fp8", kv_cache_dtype="fp8")
    if arguments.get("quantization", "auto") == "auto":
        yield _with("weights in fp8", quantization="fp8")
        yield _with("weights in 4 bits (awq)", quantization="awq")
    num_gpus = ParallelLayout.of(settings).num_gpus
    alone = {name: value for name, value in arguments.items() if name != "tensor_parallel_size"}
    for times in (2,) if deployment.fits else _MORE_GPUS:
        yield _Change(f"{times * num_gpus} GPUs", alone | {"gpu": f"{times * num_gpus}x{deployment.gpu}"})
    if before.context_tokens >= 2 * _LEAST_CONTEXT:
        shorter = before.context_tokens // 2
        yield _with(f"sequences of {tokens(shorter)}", ctx=shorter)
    if (settings.gpu_memory_utilization or 1) < 0.95:
        yield _with("gpu_memory_utilization 0.95", gpu_memory_utilization=0.95)
    if not arguments.get("enforce_eager"):
        yield _with("no CUDA graphs (enforce_eager)", enforce_eager=True)

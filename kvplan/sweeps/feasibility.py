"""What is said before anything runs: models that no trial can serve are refused, clipped requests are announced."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from kvplan.catalog.architectures import native_architectures, transformers_architectures
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.machine.host import available_memory_bytes
from kvplan.runs.trials import Trial
from kvplan.sweeps.forecast.prediction import Predictor
from kvplan.units import format_bytes, plural
from kvplan.workload.requests import RequestSpec, clip_requests

# Of the memory that is free: the sweep's own process and the rest of the machine need some as well.
_USABLE_SHARE: Final = 0.8
_MOST_COUNTS: Final = 5


def refuse_architecture(
    architecture: str, supported: Collection[str] | None = None, *, model_impl: str = "auto"
) -> None:
    """KvplanError for an architecture that kvplan's engine does not run: no trial of such a model can ever start.

    supported: what its decoder runs, None: as the table has it. model_impl: as for ``expected_implementation``.
    """
    supported = native_architectures() if supported is None else supported
    if expected_implementation(architecture, supported, model_impl=model_impl) is not None:
        return
    if model_impl == "transformers":
        raise KvplanError(
            f"{architecture} does not run through transformers.",
            hint=f"docs/models.md lists {len(transformers_architectures())} that do; try --model-impl auto",
        )
    raise KvplanError(
        f"kvplan's engine does not support {architecture} yet.",
        hint=f"it supports {len(supported)} others; `kvplan sweep --load-format none` measures its capacity",
    )


def expected_implementation(
    architecture: str, supported: Collection[str] | None = None, *, model_impl: str = "auto"
) -> str | None:
    """What will compute ``architecture``: "native", "transformers", or None where neither can.

    model_impl: native, transformers, or auto, which is native wherever it can. The engine decides by the whole config,
    so one of an architecture's shapes may still run otherwise; rows say what ran.
    """
    supported = native_architectures() if supported is None else supported
    if model_impl != "transformers" and architecture in supported:
        return "native"
    return "transformers" if model_impl != "native" and architecture in transformers_architectures() else None


def refuse_oversized(predictor: Predictor, trials: Iterable[Trial], model: str) -> None:
    """KvplanError if the weights are larger than the whole device in every trial: no setting can change that.

    model: as the user wrote it.
    """
    memories = [(predictor.memory(trial.settings), trial.settings) for trial in trials]
    smallest, settings = min(memories, key=lambda each: each[0].weight_bytes, default=(None, None))
    total = predictor.device.memory_bytes
    if smallest is not None and settings is not None and smallest.weight_bytes > total:
        raise KvplanError(
            f"The weights of {predictor.spec.served_id} take {format_bytes(smallest.weight_bytes)} in "
            f"{predictor.dtype(settings)}, but the device has {format_bytes(total)}.",
            hint=_way_out(smallest.fixed_bytes, predictor.device.kind, model, is_counted=predictor.is_counted),
        )


def _way_out(needed_bytes: int, device_kind: str, model: str, *, is_counted: bool) -> str:
    """More of this machine's memory where that is enough, else another machine or model."""
    if is_counted:
        return f"give it more with --device-memory, or name a larger one; all of it takes {format_bytes(needed_bytes)}"
    available = available_memory_bytes()
    if device_kind == "cpu" and needed_bytes < _USABLE_SHARE * available:
        return f"--device-memory gives it more of the {format_bytes(available)} that this machine has free"
    estimate = f"`kvplan estimate {shlex.quote(model)}` shows which GPUs hold it"
    if device_kind == "cpu":
        here = "--load-format none counts its blocks, --dummy-layers shared times one copy of its layers"
        return f"{estimate}; here, {here}"
    return f"{estimate}; here, sweep a smaller model"


def quantization_notice(spec: ModelSpec, dtype: str) -> str | None:
    """That the engine will not run the weights in the format they are published in, None if it does."""
    if spec.quantization is None:
        return None
    return f"the weights are published in {spec.quantization.method}; kvplan's engine runs them in {dtype}"


def published_weights_notice(spec: ModelSpec) -> str | None:
    """Whose account of the weights a counted run takes where they are published in a format of fewer bits."""
    if spec.quantization is None:
        return None
    return (
        f"the weights are published in {spec.quantization.method}: their size is the planner's (as predicted, not "
        "measured)"
    )


def clipping_notice(trials: Iterable[Trial], requests: Sequence[RequestSpec]) -> str | None:
    """Which contexts are too short for how many requests, in one line; None if every request fits everywhere."""
    contexts = sorted({trial.settings.max_model_len for trial in trials})
    clipped = {context: clip_requests(requests, context).num_clipped for context in contexts}
    counts = [f"{count:,} at context {context:,}" for context, count in clipped.items() if count]
    if not counts:
        return None
    if len(counts) > _MOST_COUNTS:
        counts[_MOST_COUNTS - 1 : -1] = [f"... {len(counts) - _MOST_COUNTS} more"]
    return (
        f"of {plural(len(requests), 'request')}, some are longer than max_model_len and are clipped to it: "
        f"{', '.join(counts)}; those trials serve less work than the others"
    )

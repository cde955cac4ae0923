"""What is said before anything runs: models that no trial can serve are refused, clipped requests are announced."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from kvplan.catalog.architectures import native_architectures, transformers_architectures
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.machine.host import available_memory_bytes
from kvplan.runs.trials import Trial, TrialSettings
from kvplan.sweeps.forecast.deployed import sequence_bytes
from kvplan.sweeps.forecast.pool import PoolPrediction
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

    Of a device that is only counted also if they exceed the budget in every trial: nothing would be counted.
    model: as the user wrote it.
    """
    memories = [(predictor.memory(trial.settings), trial.settings) for trial in trials]
    if not memories:
        return
    smallest, settings = min(memories, key=lambda each: each[0].weight_bytes / each[1].gpu_memory_utilization)
    total = predictor.device.memory_bytes
    if predictor.is_counted and all(memory.outcome == "oom_weights" for memory, _ in memories):
        share = settings.gpu_memory_utilization
        raise KvplanError(
            f"The weights of {predictor.spec.served_id} take {format_bytes(smallest.weight_bytes)}"
            f"{_on_each(settings)}, more than the {format_bytes(int(total * share))} that gpu_memory_utilization "
            f"{share:g} leaves of {format_bytes(total)}.",
            hint=_counted_way_out(predictor, settings, smallest),
        )
    if smallest.weight_bytes > total:
        raise KvplanError(
            f"The weights of {predictor.spec.served_id} take {format_bytes(smallest.weight_bytes)} in "
            f"{predictor.dtype(settings)}, but the device has {format_bytes(total)}.",
            hint=_way_out(predictor.device.kind, smallest.fixed_bytes, model),
        )


def _on_each(settings: TrialSettings) -> str:
    num_ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size
    return f" on each of {num_ranks} GPUs" if num_ranks > 1 else ""


def _counted_way_out(predictor: Predictor, settings: TrialSettings, memory: PoolPrediction) -> str:
    """The memory from which the weights fit, and with it one sequence of the trial's context."""
    share = settings.gpu_memory_utilization
    weights, sequence = memory.weight_bytes / share, sequence_bytes(predictor.own_memory(settings))
    needs = (
        f"it needs {format_bytes(math.ceil(weights), digits=0)} at {share:g} for the weights, and "
        f"{format_bytes(math.ceil((memory.fixed_bytes + sequence) / share), digits=0)} with one sequence of "
        f"{settings.max_model_len:,} tokens"
    )
    if predictor.deployed_on is not None:
        return f"{needs}, each GPU; name more of them, or larger ones, such as --gpu 8xb200"
    return f"{needs}: --device-memory; GPUs that share a model are named, such as --gpu 8xh200"


def _way_out(device_kind: str, needed_bytes: int, model: str) -> str:
    """More of this machine's memory where that is enough, else another machine or model."""
    available = available_memory_bytes()
    if device_kind == "cpu" and needed_bytes < _USABLE_SHARE * available:
        return f"--device-memory gives it more of the {format_bytes(available)} that this machine has free"
    estimate = f"`kvplan estimate {shlex.quote(model)}` shows which GPUs hold it"
    if device_kind == "cpu":
        here = "--load-format none counts its blocks, --dummy-layers shared times one copy of its layers"
        return f"{estimate}; here, {here}"
    return f"{estimate}; here, sweep a smaller model"


def quantization_notice(spec: ModelSpec, dtype: str) -> str | None:
    """Say that the engine will not run the weights in the format they are published in, None if it does."""
    if spec.quantization is None:
        return None
    return f"the weights are published in {spec.quantization.method}; kvplan's engine runs them in {dtype}"


def published_weights_notice(spec: ModelSpec) -> str | None:
    """Say whose account of the weights a counted run takes where they are published in a format of fewer bits."""
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

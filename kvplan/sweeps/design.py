"""Which trials a sweep runs: the product of the given axes, or a default design that shows the boundaries.

The default design has two planes that share one point:

* throughput: max_num_seqs x block_size, with memory to spare;
* memory: gpu_memory_utilization x max_model_len. The utilizations follow from the planner's prediction so that the
  boundary runs through the plane: weights that do not fit, no room for a block, a pool that fits the short context but
  not the long one, a pool that fits every context but is filled by the workload, and plenty.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvplan.catalog.devices.gpus import GpuCount
from kvplan.errors import UsageError
from kvplan.estimate.kvplan.memory import EnginePrediction
from kvplan.runs.trials import LoadKey, Trial, TrialSettings
from kvplan.settings import ServingSettings
from kvplan.sweeps.axes import AXES, MOST_VALUES, AxisValue
from kvplan.sweeps.forecast.deployed import deployed_defaults, deployed_ranks
from kvplan.sweeps.forecast.prediction import Predictor
from kvplan.sweeps.options import DEFAULT_BATCHED_TOKENS
from kvplan.units import MIB
from kvplan.workload.requests import RequestSpec

_THROUGHPUT_SEQS: Mapping[str, tuple[int, ...]] = {"cpu": (2, 4, 8, 16), "cuda": (16, 32, 64, 128)}
_MEMORY_SEQS: Mapping[str, int] = {"cpu": 16, "cuda": 128}
_GRID_SEQS = 256
_BLOCK_SIZES = (8, 16, 32)
_BLOCK_SIZE = 16
_UTILIZATION = 0.9
_LESS = 0.1
"""How much less of a GPU the other half of a deployment's default design uses."""
_CONTEXT_SHARES = (0.375, 0.625, 1.0)
# Share of the pool that the default design's requests fill at the highest utilization.
_FILLED_SHARE = 0.8
_NEARLY_FULL = 0.6
_MEMORY_STEP = 32 * MIB


@dataclass(frozen=True, slots=True)
class Plane:
    """A part of the design, and the two settings that span it."""

    name: str
    x: str
    y: str


@dataclass(frozen=True, slots=True)
class Design:
    """The settings to run, each once, with the planes they belong to."""

    points: Mapping[TrialSettings, tuple[str, ...]]
    planes: tuple[Plane, ...]

    def trials(self, predictor: Predictor, num_runs: int) -> tuple[Trial, ...]:
        """Return the trials in the order to run: one load of the weights after the other, and those expected to start
        before the others.

        Within a load the largest batches come first, because the engine profiles its largest step once. Runs of one
        setting follow each other where each setting takes a new server, and so do those that one server can serve.
        """

        def order(settings: TrialSettings) -> tuple[str, LoadKey, bool, bool, int, int]:
            starts = predictor.memory(settings).outcome == "ok"
            return (
                server_key(settings, predictor.lowered),
                settings.load_key,
                settings.num_speculative_tokens > 0,  # a draft model is loaded with the others
                not starts,
                -settings.max_num_batched_tokens,
                -settings.max_num_seqs,
            )

        ordered = sorted(self.points, key=order)
        runs: Iterable[tuple[int, TrialSettings]] = itertools.product(range(1, num_runs + 1), ordered)
        if predictor.engine is not None:
            runs = ((run_number, settings) for settings in ordered for run_number in range(1, num_runs + 1))
        return tuple(
            Trial(number, settings, run_number, self.points[settings])
            for number, (run_number, settings) in enumerate(runs, start=1)
        )


def server_key(settings: TrialSettings, lowered: frozenset[str]) -> str:
    """Equal for settings that one server can serve; '' where none lowers anything."""
    kept = {name: value for name, value in settings.as_json().items() if name not in lowered}
    return json.dumps(kept, sort_keys=True) if lowered else ""


def make_design(axes: Mapping[str, Sequence[AxisValue]], predictor: Predictor) -> Design:
    """The grid of the given axes, or the default design if none was given."""
    base = base_settings(predictor)
    if predictor.engine is not None:
        return _grid(axes or predictor.engine.default_axes(base), base)
    if predictor.deployed_on is not None:
        return _deployed_design(axes, predictor, base)
    return _grid(axes, base.with_changes(max_num_seqs=_GRID_SEQS)) if axes else _default_design(predictor, base)


def base_settings(predictor: Predictor) -> TrialSettings:
    """The settings that the default design varies; a grid uses them for the axes that were not given."""
    if predictor.engine is not None:
        return predictor.engine.base_settings(predictor.requests, predictor.max_concurrency)
    if predictor.deployed_on is not None:
        return _deployed_base(predictor, predictor.deployed_on)
    kind = _scale(predictor)
    return TrialSettings(
        gpu_memory_utilization=_UTILIZATION,
        max_num_seqs=_MEMORY_SEQS[kind],
        block_size=_BLOCK_SIZE,
        max_model_len=comfortable_context(predictor),
        max_num_batched_tokens=DEFAULT_BATCHED_TOKENS[kind],
    )


def _deployed_base(predictor: Predictor, counted: GpuCount) -> TrialSettings:
    """What vLLM does on these GPUs where nothing is said, but for a context with room for the requests."""
    asked = ServingSettings(
        max_model_len=comfortable_context(predictor), device_memory_bytes=predictor.device.memory_bytes
    )
    found = deployed_defaults(predictor.spec, counted, asked)
    return TrialSettings(
        gpu_memory_utilization=found.gpu_memory_utilization,
        max_num_seqs=found.max_num_seqs,
        block_size=found.block_size,
        max_model_len=found.max_model_len,
        max_num_batched_tokens=found.max_num_batched_tokens,
        tensor_parallel_size=found.tensor_parallel_size,
    )


def _deployed_design(axes: Mapping[str, Sequence[AxisValue]], predictor: Predictor, base: TrialSettings) -> Design:
    """The grid of the given axes; by default contexts up to the model's longest, with vLLM's utilization and less.

    UsageError where parallel sizes are not those of the GPUs that were named.
    """
    counted = predictor.deployed_on
    assert counted is not None
    if not axes:
        longest = predictor.spec.max_position_embeddings or base.max_model_len
        axes = {
            "gpu_memory_utilization": (round(base.gpu_memory_utilization - _LESS, 2), base.gpu_memory_utilization),
            "max_model_len": tuple(sorted({base.max_model_len, _between(base.max_model_len, longest), longest})),
        }
    if "tensor_parallel_size" not in axes:
        base = base.with_changes(tensor_parallel_size=1)  # the count decides, beside the other sizes
    grid = _grid(axes, base)
    points = {
        settings.with_changes(tensor_parallel_size=deployed_ranks(counted, settings)): planes
        for settings, planes in grid.points.items()
    }
    return replace(grid, points=points)


def _between(shorter: int, longer: int) -> int:
    """A power of two in the middle of two contexts."""
    return min(1 << round(math.log2(shorter * longer) / 2), longer)


def _scale(predictor: Predictor) -> str:
    """Batches as a CPU or as a GPU serves them; a device that is only counted is as quick as any."""
    return "cuda" if predictor.is_counted else predictor.device.kind


def comfortable_context(predictor: Predictor) -> int:
    """Room for four times the longest request, as a power of two, within the model's positions."""
    return roomy_context(predictor.requests, predictor.spec.max_position_embeddings)


def roomy_context(requests: Sequence[RequestSpec], limit: int | None) -> int:
    """``comfortable_context`` of these requests; limit: the model's positions."""
    longest = max(request.num_prompt_tokens + request.num_output_tokens for request in requests)
    context = 1 << (4 * longest - 1).bit_length()
    return context if limit is None else min(context, limit)


def _grid(axes: Mapping[str, Sequence[AxisValue]], base: TrialSettings) -> Design:
    names = [name for name in AXES if name in axes]
    size = math.prod(len(axes[name]) for name in names)
    if size > MOST_VALUES:
        raise UsageError(
            f"The axes span {size:,} settings, more than the maximum of {MOST_VALUES:,}.",
            hint="use fewer values on an axis",
        )
    points = {
        base.with_changes(**dict(zip(names, values, strict=True))): ("grid",)
        for values in itertools.product(*(axes[name] for name in names))
    }
    return Design(points, tuple(_grid_planes(axes)))


def _grid_planes(axes: Mapping[str, Sequence[AxisValue]]) -> list[Plane]:
    """Every pair of axes with more than one value; the first named is x."""
    varied = [name for name in AXES if len(axes.get(name, ())) > 1]
    return [Plane("grid", x, y) for x, y in itertools.combinations(varied, 2)] or [
        Plane("grid", name, "output_throughput") for name in varied
    ]


def _default_design(predictor: Predictor, base: TrialSettings) -> Design:
    points: dict[TrialSettings, tuple[str, ...]] = {}
    for num_seqs, block_size in itertools.product(_THROUGHPUT_SEQS[_scale(predictor)], _BLOCK_SIZES):
        _add(points, base.with_changes(max_num_seqs=num_seqs, block_size=block_size), "throughput")
    contexts = memory_contexts(base.max_model_len)
    for utilization, context in itertools.product(memory_utilizations(predictor, base, contexts), contexts):
        settings = base.with_changes(gpu_memory_utilization=utilization, max_model_len=context)
        _add(points, settings, "memory")
    planes = (
        Plane("throughput", "max_num_seqs", "block_size"),
        Plane("memory", "gpu_memory_utilization", "max_model_len"),
    )
    return Design(points, planes)


def _add(points: dict[TrialSettings, tuple[str, ...]], settings: TrialSettings, plane: str) -> None:
    points[settings] = (*points.get(settings, ()), plane)


def memory_contexts(longest: int) -> tuple[int, ...]:
    """Three contexts up to ``longest``, on whole blocks."""
    contexts = {max(_BLOCK_SIZE, int(longest * share) // _BLOCK_SIZE * _BLOCK_SIZE) for share in _CONTEXT_SHARES[:-1]}
    return tuple(sorted(contexts | {longest}))


def memory_utilizations(predictor: Predictor, base: TrialSettings, contexts: Sequence[int]) -> tuple[float, ...]:
    """Utilizations on both sides of every boundary in the plane, ascending, up to what the device has room for."""
    plenty = predictor.own_memory(base)
    fixed_bytes = plenty.fixed_bytes
    # Between two contexts the shorter one starts and the longer one is refused.
    between = [_sequence_bytes(plenty, (shorter + longer) / 2) for shorter, longer in itertools.pairwise(contexts)]
    longest = _sequence_bytes(plenty, contexts[-1])
    pools = [*between, 1.1 * longest, max(1.3 * longest, 0.7 * _demand_bytes(predictor, plenty, base))]
    budgets = [0.6 * plenty.weight_bytes, (plenty.weight_bytes + fixed_bytes) / 2]
    budgets += [fixed_bytes + pool for pool in pools]
    # Decimals at which rounding moves no budget by more than a sixteenth of the smallest gap between two budgets.
    gap = min(larger - smaller for smaller, larger in itertools.pairwise(sorted(set(budgets))))
    digits = max(2, math.ceil(-math.log10(gap / 8 / predictor.device.memory_bytes)))
    utilizations = {round(budget / predictor.device.memory_bytes, digits) for budget in budgets}
    return tuple(sorted(value for value in utilizations | {_UTILIZATION} if 0 < value <= _UTILIZATION))


def heaviest_settings(axes: Mapping[str, Sequence[AxisValue]], base: TrialSettings) -> TrialSettings:
    """The largest number of each axis, and the first of what is no number."""
    return base.with_changes(
        **{
            name: values[0] if any(isinstance(value, str) for value in values) else max(values)
            for name, values in axes.items()
        }
    )


@dataclass(frozen=True, slots=True)
class TellingMemory:
    """An amount of device memory, and why it is that much."""

    num_bytes: int
    reason: str


def telling_memory(
    predictor: Predictor, settings: TrialSettings | None = None, most_bytes: int | None = None
) -> TellingMemory:
    """The device memory at which the requests fill most of the pool with ``settings``, by default those of the default
    design's highest utilization. At least what one sequence of max_model_len needs to start, which short requests leave
    unfilled; no more than ``most_bytes``.

    With more, the pool would be all but empty there; with less, they would not fit.
    """
    base = settings or base_settings(predictor)
    plenty = predictor.own_memory(base)
    demand = _demand_bytes(predictor, plenty, base)
    filled = max(1.3 * _sequence_bytes(plenty, base.max_model_len), demand)
    budget = plenty.fixed_bytes + filled / _FILLED_SHARE
    num_bytes = math.ceil(budget / base.gpu_memory_utilization / _MEMORY_STEP) * _MEMORY_STEP
    num_bytes = num_bytes if most_bytes is None else min(num_bytes, most_bytes)
    share = demand / max(num_bytes * base.gpu_memory_utilization - plenty.fixed_bytes, 1)
    why = (
        "so that the requests nearly fill it"
        if share >= _NEARLY_FULL
        else f"room for max_model_len {base.max_model_len:,}, of which the requests fill {100 * share:.0f} % at most"
    )
    return TellingMemory(num_bytes, f"{why}; --device-memory sets it")


def _sequence_bytes(memory: EnginePrediction, num_tokens: float) -> float:
    """What a sequence of ``num_tokens`` comes to hold of the pool. A block of tokens counts in part."""
    layout = memory.layout
    if layout.is_uniform:
        return num_tokens * layout.bytes_per_token
    in_flight = memory.settings.serving.max_num_batched_tokens
    tokens = math.ceil(num_tokens)
    return layout.blocks_for(tokens, min(in_flight, tokens)) * layout.block_bytes


def _demand_bytes(predictor: Predictor, memory: EnginePrediction, base: TrialSettings) -> float:
    """What the workload's longest concurrent requests hold at once if memory is not the limit."""
    totals = sorted(
        (request.num_prompt_tokens + request.num_output_tokens for request in predictor.requests), reverse=True
    )
    together = totals[: min(base.max_num_seqs, predictor.max_concurrency or len(totals))]
    return sum(_sequence_bytes(memory, total) for total in together)

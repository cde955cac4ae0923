"""Deployments that serve a load: what ``kvplan plan`` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from kvplan.api.arguments import (
    checks_arguments,
    in_arguments_of,
    json_text,
    named_numbers,
    named_settings,
    text,
    texts,
)
from kvplan.api.planned import Plan, TracePlan
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.models import resolve_model
from kvplan.commands.printing.fleets import no_fleet
from kvplan.commands.printing.plans import nothing_serves
from kvplan.errors import KvplanError
from kvplan.planner.fleets.answering import Listener, plan_fleet
from kvplan.planner.likeness import AskedPlan, likened
from kvplan.planner.question.asking import PLAN_SETTINGS
from kvplan.planner.search.fixes import cheapest_fix
from kvplan.planner.search.plan import make_plan

_LISTS: Final = (
    *("slo", "gpu", "quantization", "kv_cache_dtype"),
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
)
_TEXTS: Final = (
    *("ctx_avg", "ctx_max", "input_len", "output_len", "confidence", "headroom"),
    *("think_time", "prefix_len", "prefix_hit_rate", "share_of_windows", "cold_start"),
)
_PATHS: Final = ("prices", "workload", "load_shape")
_OF_THE_CALL: Final = frozenset(
    {"model", "engine", "like", "speculative_config", "calibration", "progress", "measured"}
)
"""Arguments that are no options of the load, the GPUs or the fleet."""


@checks_arguments(PLAN_SETTINGS)
def plan(
    model: str | Path | None = None,
    *,
    users: int | str | None = None,
    request_rate: float | str | None = None,
    ctx_avg: int | str | None = None,
    ctx_max: int | str | None = None,
    input_len: int | str | None = None,
    output_len: int | str | None = None,
    slo: str | Iterable[str] | None = None,
    confidence: float | str | None = None,
    thorough: bool = False,
    worst_case: bool = False,
    headroom: float | str | None = None,
    gpu: str | Iterable[str] | None = None,
    max_gpus: int | None = None,
    spare_replicas: int = 0,
    tensor_parallel_size: int | Iterable[int] | None = None,
    pipeline_parallel_size: int | Iterable[int] | None = None,
    data_parallel_size: int | Iterable[int] | None = None,
    enable_expert_parallel: bool | None = None,
    nodes: int | None = None,
    budget: float | str | None = None,
    price: Mapping[str, float] | None = None,
    prices: str | Path | None = None,
    api_price: str | Mapping[str, float] | None = None,
    quantization: str | Iterable[str] | None = None,
    kv_cache_dtype: str | Iterable[str] | None = None,
    engine: str = "vllm",
    think_time: float | str | None = None,
    turns: int | None = None,
    prefix_len: int | str | None = None,
    num_prefixes: int | None = None,
    prefix_hit_rate: float | str | None = None,
    length_spread: str | None = None,
    burstiness: float | None = None,
    workload: str | Path | None = None,
    start: str | None = None,
    end: str | None = None,
    speed: float | None = None,
    sample: int | None = None,
    trace_unit: str | None = None,
    spread_ticks: bool = False,
    window: str | None = None,
    share_of_windows: float | str | None = None,
    router: str | None = None,
    load_shape: str | Path | None = None,
    disaggregate: bool = False,
    hand_over: str | None = None,
    autoscale: bool = False,
    min_replicas: int | None = None,
    max_replicas: int | None = None,
    cold_start: float | str | None = None,
    like: str | None = None,
    speculative_config: Mapping[str, Any] | None = None,
    calibration: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    measured: str | Path | Iterable[str | Path] | None = None,
    **settings: Any,
) -> Plan:
    """Find the GPUs and settings that serve a load, as ``kvplan plan`` does; arguments are its options.

    slo: "ttft:500 tpot:50". price: dollars per hour by GPU or by a cloud's instance; prices: a file of them. api_price:
    "in=0.6,out=2.4" or {"in": 0.6, "out": 2.4}. workload: a file whose requests are played as they are where it has
    times and no other load is given, which gives a ``TracePlan``; start, end: --from and --to of it. like: a vLLM
    command, whose model and settings count where nothing else is said. measured: results of your server that speeds are
    scaled by. progress: called with how many loads were played, and how many may be, in each of two passes: the formats
    asked for, then others; of a trace with how many fleets were played, twice, as nobody knows how many may be.
    settings: as in ``estimate``. KvplanError where it cannot be answered; a load that nothing serves is an answer
    without deployments.
    """
    given = dict(locals())
    options = _options({name: given[name] for name in given.keys() - _OF_THE_CALL - {"settings"}})
    asked = AskedPlan(text(model), named_settings(settings), options, engine, json_text(speculative_config))
    kept, _ = (asked, []) if like is None else likened(asked, like)
    request, spec, known = kept.request(), resolve_model(kept.named_model), load_measured(calibration)
    paths = [Path(each) for each in texts(measured)]
    if paths:
        from kvplan.calibrate.own_server import of_plan, with_results

        known = with_results(known, paths, of_plan(spec, request))
    if request.trace is not None:
        fleet = plan_fleet(spec, request, known, Listener() if progress is None else Listener(lambda n: progress(n, n)))
        return TracePlan(fleet.plan, None, None if fleet.plan.deployments else _worded(no_fleet(fleet)), fleet)
    found = make_plan(spec, request, known, progress)
    fix = cheapest_fix(found, known)
    return Plan(found, fix, None if found.deployments else _worded(nothing_serves(found, fix)))


def _worded(failure: KvplanError) -> KvplanError:
    """Return ``failure`` in the words of the arguments of ``plan``."""
    return in_arguments_of(plan, failure)


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``plan`` as its options have them."""
    found = dict(given)
    found |= {name: texts(given[name]) for name in _LISTS}
    found |= {name: text(given[name]) for name in _TEXTS}
    found |= {name: None if given[name] is None else Path(given[name]) for name in _PATHS}
    found["price"] = [named_numbers({name: usd}) for name, usd in (given["price"] or {}).items()]
    asked = given["api_price"]
    found["api_price"] = asked if asked is None or isinstance(asked, str) else named_numbers(asked)
    return found

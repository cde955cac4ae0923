"""Deployments that serve a load: what ``kvplan plan`` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvplan.api.arguments import (
    checks_arguments,
    frame,
    in_arguments_of,
    json_text,
    named_numbers,
    named_settings,
    text,
    texts,
)
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.models import resolve_model
from kvplan.commands.printing.plans import nothing_serves, print_plan
from kvplan.commands.printing.render import captured
from kvplan.errors import KvplanError
from kvplan.planner.answer.document import plan_document, plan_row
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.likeness import AskedPlan, likened
from kvplan.planner.question.asking import PLAN_SETTINGS
from kvplan.planner.search.fixes import Fix, cheapest_fix
from kvplan.planner.search.plan import PlanAnswer, make_plan

if TYPE_CHECKING:
    import pandas

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


@dataclass(frozen=True)
class Plan:
    """Deployments that serve a load, best first; none where nothing does, which ``problem`` explains."""

    answer: PlanAnswer
    fix: Fix | None

    @property
    def model(self) -> str:
        """The model that was asked for."""
        return self.answer.spec.served_id

    @property
    def deployments(self) -> tuple[PlannedDeployment, ...]:
        """Deployments that serve the load, best first."""
        return self.answer.deployments

    @property
    def best(self) -> PlannedDeployment:
        """The first deployment. KvplanError, with what would help as its hint, where nothing serves the load."""
        if not self.deployments:
            raise self._failure()
        return self.deployments[0]

    @property
    def problem(self) -> str | None:
        """Why nothing serves the load; None where something does."""
        return None if self.deployments else self._failure().message

    def _failure(self) -> KvplanError:
        return in_arguments_of(plan, nothing_serves(self.answer, self.fix))

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kvplan plan --json`` prints."""
        return plan_document(self.answer, self.fix)

    def to_frame(self) -> pandas.DataFrame:
        """Return a DataFrame with one row per deployment, best first. Needs pandas."""
        return frame([plan_row(each, self.model, self.answer.request.api_price) for each in self.deployments])

    def __str__(self) -> str:
        return self._as_text(lambda: print_plan(self.answer))

    def _as_text(self, printing: Callable[[], None]) -> str:
        """What ``printing`` prints; before it why nothing serves the load, and what would, where nothing does."""
        text = captured(printing)
        if self.deployments:
            return text
        failure = self._failure()
        hint = [] if failure.hint is None else [f"hint: {failure.hint}\n"]
        return "".join([f"{failure.message}\n", *hint, text])


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
        from kvplan.api.fleets import planned_fleet

        return planned_fleet(spec, request, known, progress)
    found = make_plan(spec, request, known, progress)
    return Plan(found, cheapest_fix(found, known))


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

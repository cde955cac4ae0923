"""The planner for Python: what ``kvplan estimate``, ``plan``, ``explain``, ``models`` and ``gpus`` answer, as objects.

    import kvplan

    found = kvplan.estimate("llama-3.1-8b", gpu="h100", ctx="16k")
    print(found)                                 # the command's table
    found.deployments[0].max_concurrency         # typed attributes
    found.to_dict()                              # the command's JSON document

Decisions are those of the commands, and stand below both. Standard library only; ``to_frame`` needs pandas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from kvplan.catalog.devices.gpus import DEFAULT_GPUS, GpuCount, GpuProfile, find_gpu, parse_gpu_count
from kvplan.catalog.devices.known_gpus import gpu_row, gpus_document, known_gpus
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.speculation.config import with_speculative_config
from kvplan.commands.printing.estimate_rows import csv_rows
from kvplan.commands.printing.estimates import print_estimates
from kvplan.commands.printing.explanations import print_explanation
from kvplan.commands.printing.known import print_gpus, print_models
from kvplan.commands.printing.plans import nothing_serves, print_plan
from kvplan.commands.printing.render import OutputFormat, captured
from kvplan.errors import UsageError
from kvplan.estimate.answer import Estimate as EstimateAnswer
from kvplan.estimate.deployments import Deployment as SizedDeployment
from kvplan.estimate.document import estimate_document
from kvplan.estimate.known_models import SCHEMA as MODELS_SCHEMA
from kvplan.estimate.known_models import KnownModel, known_models
from kvplan.estimate.question import ESTIMATE_SETTINGS, Question, answer_question, notes_on, with_kernels
from kvplan.explaining.document import explanation_document
from kvplan.explaining.explanation import EXPLAIN_SETTINGS, explain_log, of_engine
from kvplan.explaining.explanation import Explanation as LogAccount
from kvplan.explaining.learned import basis_of
from kvplan.explaining.named_model import named_model
from kvplan.explaining.reading import parse_log, read_log
from kvplan.planner.answer.document import plan_document, plan_row
from kvplan.planner.choices.deployment import Deployment as PlannedDeployment
from kvplan.planner.question.asking import PLAN_SETTINGS, plan_request
from kvplan.planner.search.fixes import Fix, cheapest_fix
from kvplan.planner.search.plan import Plan as PlanAnswer
from kvplan.planner.search.plan import make_plan
from kvplan.setting_values import read_settings
from kvplan.settings import KNOBS, ServingSettings
from kvplan.units import parse_tokens

if TYPE_CHECKING:
    import pandas

Item = TypeVar("Item")


@dataclass(frozen=True)
class Estimate:
    """How large a model is, and how many sequences of it fit on each GPU. ``str()`` is the command's table."""

    answer: EstimateAnswer

    @property
    def model(self) -> str:
        """The model that was asked for."""
        return self.answer.spec.served_id

    @property
    def context_tokens(self) -> int:
        """Tokens of one sequence."""
        return self.answer.context_tokens

    @property
    def num_parameters(self) -> int:
        """Parameters of the language model as it is served."""
        return self.answer.spec.num_parameters

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, over all GPUs."""
        return self.answer.weights.total_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache that one more token costs beyond every window."""
        return self.answer.cache.bytes_per_token

    @property
    def deployments(self) -> tuple[SizedDeployment, ...]:
        """One for each GPU, in the order asked for."""
        return self.answer.deployments

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions that change what the numbers mean, one sentence each."""
        return tuple(notes_on(self.answer))

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kvplan estimate --json`` prints."""
        return estimate_document(self.answer)

    def to_frame(self) -> pandas.DataFrame:
        """Return a DataFrame with one row per deployment, the columns of ``--format csv``. Needs pandas."""
        return _frame(csv_rows(self.answer))

    def __str__(self) -> str:
        return captured(lambda: print_estimates([self.answer], OutputFormat.table))


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
        """Those that serve the load, best first."""
        return self.answer.deployments

    @property
    def best(self) -> PlannedDeployment:
        """The first deployment. KvplanError, with what would help as its hint, where nothing serves the load."""
        if not self.deployments:
            raise nothing_serves(self.answer, self.fix)
        return self.deployments[0]

    @property
    def problem(self) -> str | None:
        """Why nothing serves the load; None where something does."""
        return None if self.deployments else nothing_serves(self.answer, self.fix).message

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kvplan plan --json`` prints."""
        return plan_document(self.answer, self.fix)

    def to_frame(self) -> pandas.DataFrame:
        """Return a DataFrame with one row per deployment, best first. Needs pandas."""
        return _frame([plan_row(each, self.model, self.answer.request.api_price) for each in self.deployments])

    def __str__(self) -> str:
        return captured(lambda: print_plan(self.answer))


@dataclass(frozen=True)
class Explanation:
    """Where the memory of a started server went, beside what was predicted, and what to change."""

    answer: LogAccount

    @property
    def changes(self) -> tuple[str, ...]:
        """What would help, one sentence each."""
        return tuple(change.sentence for change in self.answer.changes)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know of the figures."""
        return self.answer.notes

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kvplan explain --json`` prints."""
        return explanation_document(self.answer)

    def to_frame(self) -> pandas.DataFrame:
        """Return a DataFrame with one row per part of the memory. Needs pandas."""
        return _frame(self.to_dict()["memory"])

    def __str__(self) -> str:
        return captured(lambda: print_explanation(self.answer))


@dataclass(frozen=True)
class Listing(Sequence[Item]):
    """Models or GPUs known by name: a sequence with the command's table and document."""

    items: tuple[Item, ...]

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Item, ...]: ...

    def __getitem__(self, index: int | slice) -> Item | tuple[Item, ...]:
        return self.items[index]


@dataclass(frozen=True)
class Models(Listing[KnownModel]):
    """Models known by name. ``str()`` is the command's table."""

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kvplan models --json`` prints."""
        return {"schema": MODELS_SCHEMA, "models": [model.as_json() for model in self.items]}

    def to_frame(self) -> pandas.DataFrame:
        """Return a DataFrame with one row per model. Needs pandas."""
        return _frame([model.as_json() for model in self.items])

    def __str__(self) -> str:
        return captured(lambda: print_models(self.items, OutputFormat.table))


@dataclass(frozen=True)
class Gpus(Listing[GpuProfile]):
    """Devices known by name. ``str()`` is the command's table."""

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kvplan gpus --json`` prints."""
        return gpus_document(self.items)

    def to_frame(self) -> pandas.DataFrame:
        """Return a DataFrame with one row per device. Needs pandas."""
        return _frame([gpu_row(profile) for profile in self.items])

    def __str__(self) -> str:
        return captured(lambda: print_gpus(self.items, OutputFormat.table))


def estimate(
    model: str | Path,
    *,
    gpu: str | Iterable[str] | None = None,
    ctx: int | str | None = None,
    max_model_len: int | str | None = None,
    quantization: str = "auto",
    kv_cache_dtype: str = "auto",
    engine: str = "vllm",
    assume: Mapping[str, str] | None = None,
    speculative_config: Mapping[str, Any] | None = None,
    from_log: str | Path | None = None,
    calibration: str | None = None,
    measured: str | Path | Iterable[str | Path] | None = None,
    **settings: Any,
) -> Estimate:
    """Size ``model`` as ``kvplan estimate`` does.

    gpu: names such as "h100" or "8xh200", by default a handful of common ones. ctx: tokens per sequence, also as "16k";
    max_model_len is vLLM's name for it. settings: the command's other options by vLLM's names, such as
    ``gpu_memory_utilization=0.95``, as numbers or as text ("80GiB"). from_log: a start-up log of vLLM with this model,
    whose memory and settings count where nothing else is said. measured: results of your server that speeds are scaled
    by. KvplanError where it cannot be answered; a model that
    does not fit is an answer.
    """
    choice = EngineChoice.parse(engine)
    spec = resolve_model(str(model), assumptions=assume)
    named = [parse_gpu_count(name) for name in _texts(gpu)]
    gpus = named or with_kernels([parse_gpu_count(name) for name in DEFAULT_GPUS], spec, choice)
    asked = _settings(settings, ESTIMATE_SETTINGS, quantization=quantization, kv_cache_dtype=kv_cache_dtype)
    if speculative_config is not None:
        asked = with_speculative_config(asked, json.dumps(dict(speculative_config)))
    if ctx is not None and max_model_len is not None:
        raise UsageError("ctx cannot be used with max_model_len.", hint="give one of them; they mean the same here")
    tokens = max_model_len if ctx is None else ctx
    learned = None
    if from_log is not None:
        basis = basis_of(Path(from_log), spec, _only(named), choice, asked)
        learned, asked, gpus, choice = basis.learned, basis.settings, [GpuCount(1, basis.gpu)], basis.engine
        tokens = tokens if tokens is not None else next(iter(basis.contexts), None)
    question = Question(None if tokens is None else parse_tokens(str(tokens)), asked)
    known, paths = load_measured(calibration), [Path(each) for each in _texts(measured)]
    if paths:
        from kvplan.calibrate.own_server import of_estimate, with_results

        known = with_results(known, paths, of_estimate(spec, asked, gpus, choice))
    return Estimate(answer_question(spec, question, gpus, choice, known, learned))


def _only(gpus: Sequence[GpuCount]) -> GpuCount | None:
    if len(gpus) > 1:
        raise UsageError("from_log is about one model on one kind of GPU.", hint="name one")
    return gpus[0] if gpus else None


def plan(
    model: str | Path,
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
    speculative_config: Mapping[str, Any] | None = None,
    calibration: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    measured: str | Path | Iterable[str | Path] | None = None,
    **settings: Any,
) -> Plan:
    """Find the GPUs and settings that serve a load, as ``kvplan plan`` does; arguments are its options.

    slo: "ttft:500 tpot:50". price: dollars per hour by GPU or by a cloud's instance; prices: a file of them. api_price:
    "in=0.6,out=2.4" or {"in": 0.6, "out": 2.4}. start, end: --from and --to of the workload's file. measured: results
    of your server that speeds are scaled by. progress: called with how many loads were played, and how many may be, in
    each of two passes: the formats asked for, then others. settings: as in ``estimate``. KvplanError where it cannot be
    answered; a load that nothing serves is an answer without deployments.
    """
    asked = _settings(settings, PLAN_SETTINGS)
    if speculative_config is not None:
        asked = with_speculative_config(asked, json.dumps(dict(speculative_config)))
    request = plan_request(
        EngineChoice.parse(engine, known=("vllm",)),
        asked,
        users=users,
        request_rate=request_rate,
        ctx_avg=_text(ctx_avg),
        ctx_max=_text(ctx_max),
        input_len=_text(input_len),
        output_len=_text(output_len),
        slo=_texts(slo),
        confidence=_text(confidence),
        thorough=thorough,
        worst_case=worst_case,
        headroom=_text(headroom),
        gpu=_texts(gpu),
        max_gpus=max_gpus,
        spare_replicas=spare_replicas,
        tensor_parallel_size=_texts(tensor_parallel_size),
        pipeline_parallel_size=_texts(pipeline_parallel_size),
        data_parallel_size=_texts(data_parallel_size),
        enable_expert_parallel=enable_expert_parallel,
        nodes=nodes,
        budget=budget,
        price=[_named({name: usd}) for name, usd in (price or {}).items()],
        prices=None if prices is None else Path(prices),
        api_price=api_price if api_price is None or isinstance(api_price, str) else _named(api_price),
        quantization=_texts(quantization),
        kv_cache_dtype=_texts(kv_cache_dtype),
        think_time=_text(think_time),
        turns=turns,
        prefix_len=_text(prefix_len),
        num_prefixes=num_prefixes,
        prefix_hit_rate=_text(prefix_hit_rate),
        length_spread=length_spread,
        burstiness=burstiness,
        workload=None if workload is None else Path(workload),
        start=start,
        end=end,
        speed=speed,
        sample=sample,
        trace_unit=trace_unit,
        spread_ticks=spread_ticks,
    )
    spec, known = resolve_model(str(model)), load_measured(calibration)
    paths = [Path(each) for each in _texts(measured)]
    if paths:
        from kvplan.calibrate.own_server import of_plan, with_results

        known = with_results(known, paths, of_plan(spec, request))
    found = make_plan(spec, request, known, progress)
    return Plan(found, cheapest_fix(found, known))


def explain(
    log: str | Path,
    *,
    model: str | None = None,
    gpu: str | None = None,
    engine: str | None = None,
    quantization: str = "auto",
    kv_cache_dtype: str = "auto",
    **settings: Any,
) -> Explanation:
    """Account for the memory of a server from its start-up log, as ``kvplan explain`` does.

    log: a Path, or the text itself where it has more than one line; a text of one line is a path. settings: by vLLM's
    names, as in ``estimate``; they count before those of the log. KvplanError where it is no such log.
    """
    is_text = isinstance(log, str) and "\n" in log
    found, note = parse_log(str(log).encode(errors="replace"), "The log") if is_text else read_log(Path(log))
    found = of_engine(found, engine)
    spec = named_model(model, found.model)
    given = _settings(settings, EXPLAIN_SETTINGS, quantization=quantization, kv_cache_dtype=kv_cache_dtype)
    answer = explain_log(found, spec, None if gpu is None else find_gpu(gpu), given)
    return Explanation(answer if note is None else replace(answer, notes=(note, *answer.notes)))


def models(search: str | None = None) -> Models:
    """List the models known by name whose name, id or alias contains ``search``."""
    return Models(tuple(known_models(search)))


def gpus(search: str | None = None) -> Gpus:
    """List the devices known by name whose id, name or alias contains ``search``."""
    return Gpus(tuple(known_gpus(search)))


def _settings(given: Mapping[str, Any], known: Sequence[str], **more: str) -> ServingSettings:
    """Read settings by vLLM's names, of those that are ``known`` to the question. UsageError for any other.

    ``device_memory``: the name of the option for ``device_memory_bytes``.
    """
    named = {"device_memory_bytes" if name == "device_memory" else name: value for name, value in given.items()}
    for name in named:
        if name not in known:
            raise UsageError(f"kvplan has no setting '{name}' here.", hint=f"one of {', '.join(sorted(known))}")
    return read_settings({name: _written(name, value) for name, value in (named | more).items()})


def _written(name: str, value: Any) -> Any:
    """Return a value as the command line has it: bytes and tokens as text."""
    return str(value) if value is not None and KNOBS[name].kind in ("bytes", "tokens") else value


def _named(values: Mapping[str, float]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _texts(values: object) -> Sequence[str]:
    """Return one or several values as the options take them."""
    if values is None:
        return ()
    if isinstance(values, Iterable) and not isinstance(values, str):
        return [str(value) for value in values]
    return [str(values)]


def _frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    import pandas

    return pandas.DataFrame(rows)

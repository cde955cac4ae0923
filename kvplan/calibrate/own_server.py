"""A user's own results as what they say of their server: read, matched to a question, played, and learned from.

``plan --measured`` and ``estimate --measured`` are the callers. Results say little of what served them: what they do
not say is the question's, and what contradicts the question is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Final

from kvplan.calibrate.results.outcome import LoadResult
from kvplan.calibrate.results.reading import read_results
from kvplan.catalog.devices.gpus import GpuCount, GpuProfile, find_gpu
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.devices.server_scale import MeasuredServer, ServerScale
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.published_errors import FigureName
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.answer import with_quantization
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.engine_speed import engine_rules
from kvplan.estimate.speed.own_point import MeasuredFigure, OwnPoint, scale_of
from kvplan.estimate.speed.queueing.loads import LengthDistribution, ListedLoad
from kvplan.planner.choices.basis import PlanBasis, capacity_of, predict, speed_model
from kvplan.planner.choices.deployment import DeploymentChoice
from kvplan.planner.choices.formats import weight_formats
from kvplan.planner.question.request import PlanRequest, Workload
from kvplan.settings import ServingSettings
from kvplan.units import plural

_MOST_PLAYED: Final = 2048
"""Requests of a load that are played: percentiles of more are hardly others."""


@dataclass(frozen=True, slots=True)
class AskedServer:
    """What a question says of the server that results are of.

    ``gpus``: any of them; ``tensor_sizes``: any of these, None where the question asks for none. ``quantization``: as
    for a plan's formats, None for the published one.
    """

    spec: ModelSpec
    gpus: tuple[GpuProfile, ...]
    engine: EngineChoice
    settings: ServingSettings
    tensor_sizes: tuple[int, ...] | None = None
    quantization: str | None = None


def of_plan(spec: ModelSpec, request: PlanRequest) -> AskedServer:
    """The server that a plan's question names."""
    formats = request.quantizations or (None,)
    quantization = formats[0] if len(formats) == 1 else None
    return AskedServer(spec, request.gpus, request.engine, request.settings, request.sizes.tensor, quantization)


def of_estimate(
    spec: ModelSpec, settings: ServingSettings, gpus: Sequence[GpuCount], engine: EngineChoice
) -> AskedServer:
    """The server that an estimate's question names: counted GPUs are tensor ranks."""
    own = settings.tensor_parallel_size
    tensor = tuple(dict.fromkeys(each.num_gpus if each.num_gpus > 1 else own for each in gpus))
    stored = with_quantization(spec, settings)
    kinds = tuple(dict.fromkeys(each.gpu for each in gpus))
    return AskedServer(stored, kinds, engine, settings, tensor if max(tensor) > 1 else None)


@dataclass(frozen=True, slots=True)
class _ServerFacts:
    """What served a result: its own words, else the question's."""

    gpu: GpuProfile
    engine: EngineChoice
    settings: ServingSettings


def with_results(measured: MeasuredProfiles, paths: Sequence[Path], asked: AskedServer) -> MeasuredProfiles:
    """``measured`` with what the results at ``paths`` say of one server.

    KvplanError for a file that cannot be read or has no load in it; UsageError for results of another model, GPU or
    layout than ``asked`` for, or of several servers.
    """
    if asked.engine.name != "vllm":
        raise UsageError("--measured takes results of vLLM.", hint="kvplan calibrate learns from its own sweeps")
    if asked.settings.num_speculative_tokens or asked.spec.drafter is not None:
        raise UsageError("--measured cannot be used with a drafter.", hint="measure and plan without one")
    loads = read_results(paths).loads
    if not loads:
        raise KvplanError("--measured needs a load that was served.", hint="vllm bench serve --save-result writes one")
    facts = [_facts(each, asked) for each in loads]
    if any(each != facts[0] for each in facts):
        raise UsageError("The results are of different servers.", hint="give those of one of them")
    points = [_point(each, facts[0], asked, measured) for each in loads]
    scale = scale_of(points)
    work = points[0].model.work
    note = _note(points, scale, facts[0], work.layout)
    server = MeasuredServer(facts[0].gpu.id, work.layout.sizes, work.speed_format, replace(scale, note=note))
    return replace(measured, server=server)


def _facts(load: LoadResult, asked: AskedServer) -> _ServerFacts:
    """UsageError where file and question contradict each other, or neither says it."""
    served, source = load.served, load.source
    _check_model(served.model, asked.spec, source)
    if served.engine not in (None, "vllm"):
        raise UsageError(f"{source} is of {served.engine}, and the question is of vLLM.", hint="give a result of vLLM")
    version = asked.engine.version if served.engine_version is None else served.engine_version
    values = {
        name: found
        for name in (
            "gpu_memory_utilization",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_model_len",
            "block_size",
            "dtype",
            "kv_cache_dtype",
        )
        if (found := getattr(served, name)) is not None
    }
    tensor = _tensor_size(served.tensor_parallel_size, asked, source)
    settings = replace(asked.settings, tensor_parallel_size=tensor, **values)
    return _ServerFacts(_gpu(served.gpu, asked, source), replace(asked.engine, version=version), settings)


def _check_model(told: str | None, spec: ModelSpec, source: str) -> None:
    """A name that nobody knows is one that a server was given; tunes of a model are as fast as it is."""
    if told is None:
        return
    try:
        found = resolve_model(told)
    except KvplanError:
        return
    formats = [None if each.quantization is None else each.quantization.method for each in (found, spec)]
    if (found.layers, found.num_parameters) != (spec.layers, spec.num_parameters) or formats[0] != formats[1]:
        raise UsageError(f"{source} is of {found.served_id}, not of {spec.served_id}.", hint="give a result of it")


def _gpu(told: str | None, asked: AskedServer, source: str) -> GpuProfile:
    if told is None and len(asked.gpus) == 1:
        return asked.gpus[0]
    if told is None:
        hint = "name one with --gpu, or save it with vllm bench serve --metadata gpu=h100"
        raise UsageError(f"{source} does not say which GPU it was measured on.", hint=hint)
    named = find_gpu(told)
    found = next((each for each in asked.gpus if each.id == named.id), None)
    if found is None:
        others = ", ".join(each.id for each in asked.gpus[:3])
        raise UsageError(f"{source} is of {named.id}, not of {others}.", hint=f"ask with --gpu {named.id}")
    return found


def _tensor_size(told: int | None, asked: AskedServer, source: str) -> int:
    """vLLM's default where nobody says it."""
    sizes = asked.tensor_sizes
    if told is None:
        if sizes is not None and len(sizes) > 1:
            hint = "give one --tp, or save it with vllm bench serve --metadata tp=2"
            raise UsageError(f"{source} does not say its tensor parallel size.", hint=hint)
        return 1 if sizes is None else sizes[0]
    if sizes is not None and told not in sizes:
        given = ", ".join(map(str, sizes))
        raise UsageError(f"{source} is of --tp {told}, not of --tp {given}.", hint=f"ask with --tp {told}")
    return told


def _point(load: LoadResult, facts: _ServerFacts, asked: AskedServer, measured: MeasuredProfiles) -> OwnPoint:
    """The load on the deployment that served it, as a plan predicts it."""
    prompts = [each.num_prompt_tokens for each in load.requests]
    answers = [each.num_output_tokens for each in load.requests]
    prompt, answer = max(round(fmean(prompts)), 1), max(round(fmean(answers)), 1)
    at_once = min(load.max_concurrency or len(prompts), len(prompts))
    longest = max(map(sum, zip(prompts, answers, strict=True)))
    longest = max(longest, facts.settings.max_model_len or 0)
    workload = Workload(at_once, None, prompt + answer // 2, longest, prompt, answer, ())
    request = PlanRequest(engine=facts.engine, settings=facts.settings, gpus=(facts.gpu,), as_started=True)
    basis = PlanBasis(request, workload, replace(measured, server=None))
    wanted = None if asked.quantization is None else (asked.quantization,)
    weights = weight_formats(asked.spec, wanted, facts.settings.dtype)[0]
    layout = ParallelLayout(tensor_parallel_size=facts.settings.tensor_parallel_size)
    choice = DeploymentChoice(basis.gpus[0], layout, weights, facts.settings.kv_cache_dtype)
    start = predict(basis, choice, at_once)
    if not start.fits:
        text = f"{asked.spec.served_id} does not fit on {facts.gpu.id} with --tp {layout.tensor_parallel_size}"
        raise UsageError(f"{load.source} cannot be placed: {text}.", hint="give --tp as it was served")
    model = speed_model(basis, choice, start)
    pool = float(capacity_of(basis, choice, start).pool_tokens)
    rules = engine_rules(replace(facts.engine, version=start.version), start.settings.serving, model.work, pool)
    return OwnPoint(model, _played(load), rules, _figures(load))


def _played(load: LoadResult) -> ListedLoad:
    lengths = tuple((each.num_prompt_tokens, each.num_output_tokens) for each in load.requests)
    times = tuple(each.arrival_seconds for each in load.requests)
    count = len(lengths)
    prompts, answers = (LengthDistribution(fmean(each)) for each in zip(*lengths, strict=True))
    found = ListedLoad(prompts, answers, count, max_concurrency=load.max_concurrency, listed=lengths)
    if any(times):  # a rate is that of all of them
        return replace(found, times=times, listed=lengths[:_MOST_PLAYED], num_requests=min(count, _MOST_PLAYED))
    most = max(_MOST_PLAYED, 4 * (load.max_concurrency or count))
    return replace(found, num_requests=min(count, most))


def _figures(load: LoadResult) -> dict[FigureName, MeasuredFigure]:
    """Return what published results are compared by: the median TTFT and the mean TPOT, where both are there."""
    seen, found = load.figures, dict[FigureName, MeasuredFigure]()
    if seen.median_ttft is not None:
        found["ttft"] = MeasuredFigure("p50", seen.median_ttft)
    elif seen.mean_ttft is not None:
        found["ttft"] = MeasuredFigure("mean", seen.mean_ttft)
    if seen.mean_tpot is not None:
        found["tpot"] = MeasuredFigure("mean", seen.mean_tpot)
    elif seen.median_tpot is not None:
        found["tpot"] = MeasuredFigure("p50", seen.median_tpot)
    if len(found) < 2:
        found["throughput"] = MeasuredFigure("mean", seen.output_throughput)
    return found


def _note(points: Sequence[OwnPoint], scale: ServerScale, facts: _ServerFacts, layout: ParallelLayout) -> str:
    """``scaled by your measurement on 1 x h100-sxm: ...``, for people."""
    point = points[0]
    predicted = point.figures(ServerScale())
    name = "tpot" if "tpot" in point.measured else next(iter(point.measured))
    was, seen = predicted[name], point.measured[name].value
    unit = f"{seen:,.0f} tokens/s" if name == "throughput" else f"{1000 * seen:,.1f} ms"
    before = f"{was:,.0f}" if name == "throughput" else f"{1000 * was:,.1f}"
    what = {"tpot": "TPOT", "ttft": "TTFT", "throughput": "throughput"}[name]
    more = "" if len(points) == 1 else f", the first of {plural(len(points), 'result')}"
    return (
        f"scaled by your measurement on {layout.num_gpus} x {facts.gpu.id}: kernels x{scale.kernels:.2f}, "
        f"host x{scale.host:.2f} ({what} {unit} measured, {before} predicted{more})"
    )

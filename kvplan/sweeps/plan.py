"""From options to everything that a sweep needs before it runs: model, device, requests, schedule."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Final

from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.spec import ModelSpec
from kvplan.machine.device import AskDevice, Device, cpu_with_memory, detect_device
from kvplan.runs.columns import Row
from kvplan.runs.directory import ShardEntry
from kvplan.runs.setting_text import shown_settings, varied_settings
from kvplan.runs.trials import Trial
from kvplan.sweeps.capacity import COUNTED_NOTICE, DEPLOYED_NOTICE, counted_device, has_memory, with_memory
from kvplan.sweeps.design import Plane, base_settings, heaviest_settings, make_design, server_key, telling_memory
from kvplan.sweeps.drafting import swept_model
from kvplan.sweeps.engine_names import OWN_ENGINE
from kvplan.sweeps.feasibility import (
    clipping_notice,
    expected_implementation,
    published_weights_notice,
    quantization_notice,
    refuse_architecture,
    refuse_oversized,
)
from kvplan.sweeps.forecast.prediction import Predictor, TrialPrediction
from kvplan.sweeps.forecast.under_load import SloPrediction, UnderLoad
from kvplan.sweeps.hosts import LowersOnTheRun, SweptEngine
from kvplan.sweeps.options import COUNTED_FORMAT, SweepOptions
from kvplan.sweeps.schedules.boundary_search import make_search
from kvplan.sweeps.schedules.reruns import WithReruns
from kvplan.sweeps.schedules.schedule import FixedSchedule, Schedule, Step, simulate, trials_of
from kvplan.sweeps.schedules.slo_search import SloSearch
from kvplan.sweeps.shards.shard import Shard
from kvplan.sweeps.weights import refuse_impossible_weights, resolve_load_format
from kvplan.sweeps.worker.early import ask_own_worker
from kvplan.workload.requests import WorkloadSpec, generate_requests, share_by_file

SHARED_NOTICE: Final = (
    "identical layers share one copy of dummy weights but count in full; speeds approximate the whole model's"
)
TRANSFORMERS_NOTICE: Final = (
    "the model runs in its class of transformers: weights and blocks are accounted as always, activations and speed "
    "are measured, not predicted"
)
ADAPTERS_NOTICE: Final = (
    "requests use adapters of random weights and the largest rank in turn, one for each slot; speeds with adapters are "
    "measured, not predicted"
)
REUSE_NOTICE: Final = "speeds are not predicted: the prefix cache will find what the file says that prompts share"
DUMMY_NOTICE: Final = "random weights (dummy): capacity and speed do not depend on the weights' values"


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A sweep that is ready to run. ``notices`` are lines for the user; engine: None for kvplan's own.

    trials: all of them for a design, those that are expected from the predictions for a search, its own for a shard.
    shard: which part of a plan this is, None for a whole one.
    """

    run_id: str
    created_at: str
    options: SweepOptions
    workload: WorkloadSpec
    predictor: Predictor
    schedule: Schedule
    trials: tuple[Trial, ...]
    planes: tuple[Plane, ...]
    load_format: str
    notices: tuple[str, ...]
    engine: SweptEngine | None = None
    shard: ShardEntry | None = None

    @property
    def spec(self) -> ModelSpec:
        return self.predictor.spec

    @property
    def device(self) -> Device:
        return self.predictor.device

    def predictions(self) -> list[TrialPrediction]:
        under = UnderLoad(self.workload, self.predictor)
        return [under.predictor_of(trial.load).trial(trial.settings) for trial in self.trials]

    @property
    def first_bytes(self) -> int:
        """Memory of the CPU that the first trial writes before it serves: weights, and blocks of what runs at once."""
        if self.device.kind != "cpu" or self.options.is_counted or not self.trials:
            return 0
        settings = self.trials[0].settings
        memory = self.predictor.memory(settings)
        lengths = sorted(each.num_prompt_tokens + each.num_output_tokens for each in self.predictor.requests)
        written = sum(lengths[-settings.max_num_seqs :]) * memory.layout.bytes_per_token
        return memory.weight_bytes + min(memory.num_blocks * memory.block_bytes, math.ceil(written))

    @property
    def shown(self) -> tuple[str, ...]:
        """The settings and loads that lines and tables name: the usual ones, what was given, what is searched."""
        searched = (self.options.load_range().variable,) if self.options.search else ()
        varied = varied_settings(trial.settings for trial in self.trials)
        return shown_settings((*self.options.axes, *varied, *searched))

    @property
    def default_directory(self) -> Path:
        """``./kvplan-sweep-<model>-<timestamp>``."""
        return Path(f"kvplan-sweep-{self.run_id}")


def make_plan(
    options: SweepOptions,
    engine: SweptEngine | None = None,
    elsewhere: Device | None = None,
    ask: AskDevice | None = ask_own_worker,
) -> SweepPlan:
    """Decide everything, start nothing and write nothing. UsageError or KvplanError for what cannot be done.

    elsewhere: the device of the machines that the trials will run on; None for this one's. ask: a worker, where this
    machine may have a GPU; None to open nothing, and to believe the driver.
    """
    ask = None if ask is None else cache(ask)
    axes = options.parsed_axes()  # a malformed axis is reported before anything slow happens
    memory_bytes = options.device_memory_bytes()
    spec = swept_model(options.model, options.speculative_config)
    load_format = resolve_load_format(options)
    if engine is None:
        refuse_impossible_weights(axes, spec, load_format, implementation_of(options, spec))
    if engine is not None:
        engine.refuse(axes)
        device = engine.device(memory_bytes)
    elif elsewhere is not None and not options.is_counted:
        refuse_architecture(spec.architecture, model_impl=options.model_impl)
        device = elsewhere
    elif options.is_counted:
        device = counted_device(options)
    else:
        refuse_architecture(spec.architecture, model_impl=options.model_impl)
        device = detect_device(
            options.device,
            memory_bytes,
            weight_bytes=4 * spec.num_parameters,
            must_be_free=not options.shares_layers,
            ask=ask,
        )
    if options.shard is not None:  # each part makes the whole plan, and other processes' memory differs
        device = replace(device, overhead_bytes=None)
    workload = options.workload_spec("cuda" if options.is_counted else device.kind)
    predictor, calibration_notices = make_predictor(options, spec, device, workload, engine)
    predictor = _with_telling_memory(options, predictor, ask, is_elsewhere=elsewhere is not None)
    workload = replace(workload, num_prompts=len(predictor.requests))  # a file may hold fewer
    trials, planes = _trials_and_planes(options, predictor, workload)
    refuse_oversized(predictor, trials, options.model)
    shard = None if options.shard is None else Shard.parse(options.shard)
    entry = None
    if shard is not None:
        entry, trials = shard.entry(trials), shard.of(trials, lambda trial: _unit(trial, predictor))
    now = datetime.now(timezone.utc)
    part = "" if shard is None else f"-{shard.number}of{shard.count}"
    return SweepPlan(
        run_id=f"{file_name(spec.served_id)}-{now:%Y%m%d-%H%M%S}{part}",
        created_at=now.isoformat(timespec="seconds"),
        options=options,
        workload=workload,
        predictor=predictor,
        schedule=make_schedule(options, predictor, workload, trials),
        trials=trials,
        planes=planes,
        load_format=load_format,
        notices=notices_of(options, predictor, trials, load_format, engine) + calibration_notices,
        engine=engine,
        shard=entry,
    )


def _unit(trial: Trial, predictor: Predictor) -> Hashable:
    """Equal for trials that one machine runs: those of one setting, or of one server."""
    return server_key(trial.settings, predictor.lowered) or trial.settings


def implementation_of(options: SweepOptions, spec: ModelSpec) -> str | None:
    """What is expected to compute the model; None where nothing does."""
    if options.is_counted or options.is_foreign:
        return None
    return expected_implementation(spec.architecture, model_impl=options.model_impl)


def _with_telling_memory(
    options: SweepOptions, predictor: Predictor, ask: AskDevice | None, *, is_elsewhere: bool
) -> Predictor:
    """The predictor for a default design on a CPU, whose memory nobody chose: as much as makes its outcomes visible.

    Of a device that is only counted, also for other designs: there is no other amount to take.
    """
    if options.is_counted:
        if has_memory(options):
            return predictor
        telling = telling_memory(predictor, heaviest_settings(options.parsed_axes(), base_settings(predictor)))
        return replace(predictor, device=with_memory(predictor.device, telling.num_bytes, telling.reason))
    is_chosen = bool(options.is_foreign or options.device_memory or options.axes or options.boundary or options.search)
    if is_chosen or predictor.device.kind != "cpu":
        return predictor
    telling = telling_memory(predictor, most_bytes=predictor.device.memory_bytes)
    if is_elsewhere:
        return replace(predictor, device=cpu_with_memory(predictor.device, telling.num_bytes, telling.reason))
    return replace(predictor, device=detect_device(options.device, telling.num_bytes, reason=telling.reason, ask=ask))


def _trials_and_planes(
    options: SweepOptions, predictor: Predictor, workload: WorkloadSpec
) -> tuple[tuple[Trial, ...], tuple[Plane, ...]]:
    if options.boundary or options.search:
        under = UnderLoad(workload, predictor)
        schedule = make_schedule(options, predictor, workload, ())
        steps = simulate(schedule, lambda step: _expected_row(step, under, options.slo_seconds))
        return trials_of(steps), (Plane("probe", "gpu_memory_utilization", "max_model_len"),)
    design = make_design(options.parsed_axes(), predictor)
    return design.trials(predictor, options.repetitions), design.planes


def make_schedule(
    options: SweepOptions, predictor: Predictor, workload: WorkloadSpec, trials: tuple[Trial, ...]
) -> Schedule:
    schedule = _planned(options, predictor, workload, trials)
    return WithReruns(schedule) if options.rerun else schedule


def _planned(
    options: SweepOptions, predictor: Predictor, workload: WorkloadSpec, trials: tuple[Trial, ...]
) -> Schedule:
    axes, base, runs = options.parsed_axes(), base_settings(predictor), options.repetitions
    if options.boundary:
        return make_search(options.boundary, axes, base, predictor, options.seed, runs)
    if options.search:
        settings = tuple(make_design(axes, predictor).points) if axes else (base,)
        expects = SloPrediction(UnderLoad(workload, predictor), options.slo_seconds).keeps
        return SloSearch(options.load_range(), settings, len(predictor.requests), runs, expects)
    return FixedSchedule(trials)


def _expected_row(step: Step, under: UnderLoad, slo_seconds: Mapping[str, float]) -> Row:
    """The columns that schedules look at, if everything goes as predicted."""
    predictor = under.predictor_of(step.trial.load)
    prediction = predictor.trial(step.trial.settings)
    throughput = prediction.output_throughput
    rate = None if throughput is None else len(predictor.requests) / max(prediction.seconds, 1e-9)
    return {
        "status": prediction.status,
        "load_format": COUNTED_FORMAT if predictor.is_counted else "auto",
        "output_throughput": throughput,
        "request_throughput": rate,
        "slo_pass": bool(slo_seconds) and SloPrediction(under, slo_seconds).keeps(step.trial.settings, step.trial.load),
    }


def make_predictor(
    options: SweepOptions, spec: ModelSpec, device: Device, workload: WorkloadSpec, engine: SweptEngine | None = None
) -> tuple[Predictor, tuple[str, ...]]:
    """The predictor, calibrated if this device was measured before, and what to tell the user about that."""
    measured = load_measured()
    dtype = next((str(value) for value in options.parsed_axes().get("dtype", ()) if value != "auto"), None)
    served_by = OWN_ENGINE if engine is None else engine.name
    profile = measured.for_device(device.kind, device.name, device.num_cores, dtype, engine=served_by)
    notices = measured.notices if profile is None else (*measured.notices, f"speeds: {profile.as_text()}")
    requests = generate_requests(workload)
    found = Predictor(spec, device, requests, workload.max_concurrency)
    if engine is None and options.is_counted:
        return replace(found, is_counted=True, deployed_on=options.counted_gpus()), ()
    found = replace(found, calibration=profile, finds_more=share_by_file(requests))
    if engine is None:
        return replace(found, is_dense=resolve_load_format(options) == "dummy"), notices
    lowered = engine.lowered if isinstance(engine, LowersOnTheRun) else frozenset[str]()
    return replace(found, engine=engine.model(spec, device), lowered=lowered), notices


def notices_of(
    options: SweepOptions,
    predictor: Predictor,
    trials: Sequence[Trial],
    load_format: str,
    engine: SweptEngine | None = None,
) -> tuple[str, ...]:
    """What the user did not ask for but gets."""
    if engine is not None:
        is_dummy = load_format == "dummy" and options.load_format == "auto" and options.url is None
        dummy = (DUMMY_NOTICE,) if is_dummy else ()
        clipped = clipping_notice(trials, predictor.requests)
        clipped_too = (clipped,) if clipped else ()
        return (*options.file_notes(), *reuse_notice(predictor), *engine.notices, *dummy, *clipped_too)
    is_unasked_dummy = load_format == "dummy" and options.load_format == "auto"
    dtypes = dict.fromkeys(predictor.dtype(trial.settings) for trial in trials)
    as_published = any(trial.settings.quantization == "auto" for trial in trials)
    is_own_account = options.is_counted and predictor.deployed_on is None
    notices = (
        predictor.device.notice,
        DUMMY_NOTICE if is_unasked_dummy else None,
        COUNTED_NOTICE if options.is_counted else None,
        SHARED_NOTICE if options.shares_layers else None,
        TRANSFORMERS_NOTICE if implementation_of(options, predictor.spec) == "transformers" else None,
        quantization_notice(predictor.spec, " and ".join(dtypes)) if load_format == "dummy" and as_published else None,
        *_deployed_notices(predictor, trials),
        published_weights_notice(predictor.spec) if is_own_account and as_published else None,
        ADAPTERS_NOTICE if any(trial.settings.lora_slots for trial in trials) else None,
        clipping_notice(trials, predictor.requests),
    )
    return (*options.file_notes(), *reuse_notice(predictor), *(notice for notice in notices if notice))


def reuse_notice(predictor: Predictor) -> tuple[str, ...]:
    """What is not predicted of a file whose prompts begin alike."""
    return (REUSE_NOTICE,) if predictor.finds_more else ()


def _deployed_notices(predictor: Predictor, trials: Sequence[Trial]) -> tuple[str, ...]:
    """Say by whose account pools of GPUs that are only counted are left, and where vLLM itself would not start."""
    pools = [predictor.deployed(trial.settings) for trial in trials]
    found = [(pool, trial) for pool, trial in zip(pools, trials, strict=True) if pool is not None]
    if not found:
        return ()
    unlike = [(pool, trial) for pool, trial in found if pool.engine.outcome == "ok" and not pool.vllm.fits]
    release = found[0][0].vllm.version
    notices = [DEPLOYED_NOTICE.format(release)]
    if unlike:
        contexts = ", ".join(
            f"{context:,}" for context in sorted({trial.settings.max_model_len for _, trial in unlike})
        )
        notices.append(
            f"vLLM {release} would not start with {len(unlike)} of these settings (context {contexts}): its own blocks "
            "take more"
        )
    return tuple(notices)


def file_name(model_id: str) -> str:
    """A model's name as part of a file's."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", model_id.rsplit("/", 1)[-1]).strip("-.") or "model"

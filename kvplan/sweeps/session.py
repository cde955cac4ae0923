"""A whole sweep, from a plan to a directory: new or continued, interrupted or not.

The default design planned once more, when the engine has said what it keeps free of its GPU.

The boundaries of the memory plane lie within some MiB of the smallest pools. What context, libraries, captured steps
and other processes take of a GPU is known so exactly only when an engine is loaded there.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.errors import KvplanError, UsageError
from kvplan.machine.device import Device, Reserve
from kvplan.machine.host import checkout_commit
from kvplan.runs.answers.summary import Summary, summarize
from kvplan.runs.columns import Row
from kvplan.runs.directory import WORKER_LOG, read_manifest, refuse_misshapen
from kvplan.runs.setting_text import ALWAYS_SHOWN
from kvplan.runs.storage.store import SweepStore
from kvplan.runs.trials import Trial
from kvplan.sweeps.design import base_settings, make_design
from kvplan.sweeps.forecast.timing import TrialTimes
from kvplan.sweeps.forecast.under_load import PreparedTrial, UnderLoad
from kvplan.sweeps.hosts import HostPool, OnEvent, SweptEngine, TrialHost
from kvplan.sweeps.manifest import DeviceOf, manifest_of, plan_from_manifest
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import SweepPlan, implementation_of, make_schedule
from kvplan.sweeps.pool import PoolRunner
from kvplan.sweeps.progress import Progress
from kvplan.sweeps.rows import SweepIdentity
from kvplan.sweeps.runner import Runner
from kvplan.sweeps.weights import weights_path
from kvplan.sweeps.worker.client import WORKER_COMMAND, TimeLimits, Worker
from kvplan.sweeps.worker.early import EarlyWorker
from kvplan.sweeps.worker_host import WorkerHost, engine_source

FIRST_POOL_NOTICE: Final = "the engine is loaded first: the sweep's boundaries are planned by what it leaves of the GPU"
StartWorker = Callable[[Path], Worker]
PoolOf = Callable[[SweepPlan, SweepIdentity], HostPool]


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """What a sweep left in ``directory``. interrupted: by Ctrl-C or SIGTERM, before its last trial.

    shown: the settings and loads that its lines and tables name. is_shard: whether it is only a part of a plan.
    """

    directory: Path
    summary: Summary
    rows: list[Row]
    interrupted: bool
    shown: tuple[str, ...] = ALWAYS_SHOWN
    is_shard: bool = False


def run_new_sweep(
    plan: SweepPlan,
    directory: Path,
    progress: Progress,
    *,
    command: str,
    worker_command: Sequence[str] = WORKER_COMMAND,
    pool_of: PoolOf | None = None,
    early: EarlyWorker | None = None,
    announce: Callable[[SweepPlan], None] = lambda plan: None,
) -> SweepOutcome:
    """Run every trial of the plan into a new directory. KvplanError if the directory cannot be used.

    pool_of: lends workers to run several trials at once; None for one worker on this machine, ``early`` if it is given.
    announce: gets the plan before the first trial. On a GPU it may differ from ``plan`` by what that leaves of memory.
    """
    if early is not None:
        early.expect(plan.first_bytes)
    with SweepStore.create(directory, manifest_of(plan, command)) as store:
        try:
            if pool_of is not None:
                announce(plan)
                return _run(plan, store, progress, _pool_runner(plan, store, progress, pool_of))
            return _run_here(plan, store, progress, _starter(worker_command, early), announce)
        except KvplanError:
            if not store.records:  # nothing was measured, so there is nothing to continue
                store.take_back()
            raise


def resume_sweep(
    directory: Path,
    progress: Progress,
    *,
    announce: Callable[[SweepPlan], None] = lambda plan: None,
    worker_command: Sequence[str] = WORKER_COMMAND,
    engine_of: Callable[[SweepOptions], SweptEngine | None] = lambda options: None,
    device_of: DeviceOf | None = None,
    pool_of: PoolOf | None = None,
) -> SweepOutcome:
    """Run what a sweep's directory still lacks. ``announce`` gets the plan before the first trial.

    engine_of, device_of: as for ``plan_from_manifest``. pool_of: as for ``run_new_sweep``.
    """
    manifest = read_manifest(directory)
    refuse_misshapen(manifest, directory)
    plan = plan_from_manifest(manifest, engine_of, device_of)
    with SweepStore.reopen(directory) as store:
        announce(plan)
        if pool_of is not None:
            return _run(plan, store, progress, _pool_runner(plan, store, progress, pool_of))
        host = _host(plan, _identity(plan), store, _starter(worker_command))
        return _run(plan, store, progress, _single_runner(plan, store, progress, host))


def _starter(worker_command: Sequence[str], early: EarlyWorker | None = None) -> StartWorker:
    """Starts a worker that logs to a file; the first one is ``early``, where there is one."""

    def start(log_path: Path) -> Worker:
        waiting = None if early is None else early.take(log_path)
        return waiting or Worker.start(log_path, worker_command)

    return start


def _run_here(
    plan: SweepPlan,
    store: SweepStore,
    progress: Progress,
    start_worker: StartWorker,
    announce: Callable[[SweepPlan], None],
) -> SweepOutcome:
    """One trial after the other, with boundaries where this GPU has them."""
    host = _host(plan, _identity(plan), store, start_worker)
    try:
        if isinstance(host, WorkerHost) and has_boundaries_to_measure(plan):
            progress.note(FIRST_POOL_NOTICE)
            plan = planned_by_first_pool(plan, host, progress.event)
            manifest = manifest_of(plan, "")
            store.update_manifest({"trials": manifest["trials"], "planes": manifest["planes"]})
        announce(plan)
    except BaseException:
        host.close()
        raise
    return _run(plan, store, progress, _single_runner(plan, store, progress, host))


def _run(plan: SweepPlan, store: SweepStore, progress: Progress, runner: Runner | PoolRunner) -> SweepOutcome:
    interrupted = False
    try:
        with sigterm_interrupts():
            runner.run()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        runner.close()
    store.write_results()
    summary = summarize(store.read_manifest(), store.rows, interrupted=interrupted)
    store.write_summary(summary)
    return SweepOutcome(store.directory, summary, store.rows, interrupted, plan.shown, plan.shard is not None)


def refuse_searches(options: SweepOptions) -> None:
    """UsageError for what takes each trial from the results of those before, and so runs on one worker."""
    searching = "--search" if options.search is not None else "--boundary" if options.boundary else None
    if searching is not None:
        raise UsageError(
            f"{searching} takes each trial from the results of those before, so a cluster would not speed it up.",
            hint="run it without --ray on a machine of the cluster",
        )


def _pool_runner(plan: SweepPlan, store: SweepStore, progress: Progress, pool_of: PoolOf) -> PoolRunner:
    refuse_searches(plan.options)
    identity = _identity(plan)
    return PoolRunner(
        trials=plan.trials,
        store=store,
        predictor=plan.predictor,
        identity=identity,
        pool=pool_of(plan, identity),
        progress=progress,
        reruns=plan.options.rerun,
        shown=plan.shown,
        timeout_seconds=plan.options.trial_timeout,
    )


def _single_runner(plan: SweepPlan, store: SweepStore, progress: Progress, host: TrialHost) -> Runner:
    return Runner(
        schedule=plan.schedule,
        expected=plan.trials,
        store=store,
        predictor=plan.predictor,
        identity=_identity(plan),
        host=host,
        progress=progress,
        shown=plan.shown,
        timeout_seconds=plan.options.trial_timeout,
    )


def _host(plan: SweepPlan, identity: SweepIdentity, store: SweepStore, start_worker: StartWorker) -> TrialHost:
    return _foreign_host(plan, identity, store) or _own_host(plan, identity, store, start_worker)


def _own_host(plan: SweepPlan, identity: SweepIdentity, store: SweepStore, start_worker: StartWorker) -> TrialHost:
    log_path = store.directory / WORKER_LOG
    return WorkerHost(
        identity,
        plan.spec,
        engine_source(plan.options, plan.spec, plan.load_format, store.directory),
        lambda: start_worker(log_path),
        on_versions=store.add_versions,
    )


def _foreign_host(plan: SweepPlan, identity: SweepIdentity, store: SweepStore) -> TrialHost | None:
    """What serves in the place of kvplan's engine; None for that."""
    engine = plan.engine
    if engine is None:
        return None
    if engine.version is not None:
        store.add_versions({engine.name: engine.version})
    path = None if plan.load_format == "dummy" else weights_path(plan.options)
    return engine.host(identity, plan.spec, path, store.directory)


def _identity(plan: SweepPlan) -> SweepIdentity:
    return SweepIdentity(
        run_id=plan.run_id,
        model_id=plan.spec.served_id,
        device=plan.device,
        workload=plan.workload,
        load_format=plan.load_format,
        shares_layers=plan.options.shares_layers,
        implementation=implementation_of(plan.options, plan.spec),
        model_impl=plan.options.model_impl,
        rounded_activations=plan.options.activation_quantization if plan.options.rounds_activations else None,
        has_published_weights=plan.options.is_counted and plan.spec.quantization is not None,
        is_deployed=plan.predictor.deployed_on is not None,
        slo_seconds=plan.options.slo_seconds,
        usd_per_hour=price_per_hour(plan.device),
        engine=None if plan.engine is None else plan.engine.name,
        commit=checkout_commit(),
        speculative_config=plan.options.speculative_config,
    )


def price_per_hour(device: Device) -> float | None:
    """The catalog's price of a GPU of this name, in US dollars; None for CPUs and unknown GPUs."""
    if device.kind != "cuda":
        return None
    try:
        price = find_gpu(device.name).price
    except UsageError:
        return None
    return None if price is None else price.usd_per_hour


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM is treated like Ctrl-C: what was measured gets written."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class AsksFirst(Protocol):
    """A host that can say what its engine keeps free."""

    def first_reserve(self, prepared: PreparedTrial, limits: TimeLimits, on_event: OnEvent) -> Reserve | None: ...


def has_boundaries_to_measure(plan: SweepPlan) -> bool:
    """Whether the settings of a plan follow from what a GPU leaves: nobody gave them, and no other part has them."""
    options = plan.options
    is_given = bool(options.axes or options.boundary or options.search) or plan.shard is not None
    return plan.device.kind == "cuda" and plan.engine is None and not options.is_counted and not is_given


def planned_by_first_pool(plan: SweepPlan, host: AsksFirst, on_event: OnEvent) -> SweepPlan:
    """``plan`` with the trials that show the boundaries of this GPU as it is now; ``plan`` where nothing is said."""
    first = Trial(1, base_settings(plan.predictor), 1, ())
    under = UnderLoad(plan.workload, plan.predictor)
    prepared = under.prepare(first)
    limits = TrialTimes(under, TimeLimits(), plan.options.trial_timeout).limits_for(prepared)
    reserve = host.first_reserve(prepared, limits, on_event)
    if reserve is None:
        return plan
    predictor = plan.predictor.with_reserve(first.settings, reserve)
    design = make_design({}, predictor)
    trials = design.trials(predictor, plan.options.repetitions)
    schedule = make_schedule(plan.options, predictor, plan.workload, trials)
    return replace(plan, predictor=predictor, trials=trials, planes=design.planes, schedule=schedule)

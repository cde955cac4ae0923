"""Results with what served them, all of one device, number format and engine: what one profile can hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from kvplan.calibrate.results.deployment import Deployed, deployed
from kvplan.calibrate.results.observing import ServedResult, TimedBatch
from kvplan.calibrate.results.outcome import Results
from kvplan.calibrate.results.served import ServedDeployment
from kvplan.calibrate.trials import DeviceIdentity
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.speed.steps.rank_step import KernelSpeed
from kvplan.workload.requests import RequestSpec


@dataclass(slots=True)
class Matched:
    """loads and batches of one device and engine. excluded: unusable results by reason."""

    loads: list[ServedResult]
    batches: list[TimedBatch]
    excluded: dict[str, int] = field(default_factory=dict)

    @property
    def all(self) -> list[ServedResult | TimedBatch]:
        return [*self.loads, *self.batches]

    @property
    def first(self) -> Deployed:
        return self.all[0].of

    def believing(self, kernels: KernelSpeed) -> Matched:
        """The same results on a device of which so much is believed."""
        loads = [replace(each, of=replace(each.of, kernels=kernels)) for each in self.loads]
        batches = [replace(each, of=replace(each.of, kernels=kernels)) for each in self.batches]
        return Matched(loads, batches, self.excluded)

    @property
    def device(self) -> DeviceIdentity:
        return self.first.device

    @property
    def gpu(self) -> GpuProfile:
        return self.first.gpu

    @property
    def models(self) -> dict[str, ModelSpec]:
        return {each.of.spec.id: each.of.spec for each in self.all}

    @property
    def engine_version(self) -> str:
        """Version of all results, or all of their versions."""
        return ", ".join(sorted({each.of.engine_version for each in self.all}))


def match(results: Results, options: ServedDeployment) -> Matched:
    """Each result completed by ``options``. KvplanError for results that one profile cannot hold together."""
    _refuse_renaming(results, options)
    loads = [
        ServedResult(each, deployed(_completed(each.served, options, each.source), each.source, each.requests))
        for each in results.loads
    ]
    batches = [
        TimedBatch(each, deployed(_completed(each.served, options, each.source), each.source, _held(each.requests)))
        for each in results.batches
    ]
    found = Matched(loads, batches, dict(results.excluded))
    _refuse_several("devices or number formats", (each.of.device.as_text() for each in found.all))
    _refuse_several("engines", (each.of.engine for each in found.all))
    return found


def _completed(served: ServedDeployment, options: ServedDeployment, source: str) -> ServedDeployment:
    found = served.completed_by(options, source)
    if options.gpu is None or found.gpu is None or served.gpu is None:
        return found
    return replace(found, gpu=_one_gpu(served.gpu, options.gpu, source))


def _one_gpu(told: str, given: str, source: str) -> str:
    from kvplan.catalog.devices.gpus import find_gpu

    if find_gpu(told).id != find_gpu(given).id:
        raise KvplanError(f"{source} says that it ran on {told}, but --gpu says {given}.", hint="leave --gpu out")
    return told


def _held(requests: tuple[tuple[int, int], ...]) -> tuple[RequestSpec, ...]:
    """The sequences of a batch by their lengths."""
    return tuple(RequestSpec(index, held, 1) for index, (_, held) in enumerate(requests))


def _refuse_renaming(results: Results, options: ServedDeployment) -> None:
    """One --model cannot be the name of several."""
    told = {each.served.model for each in results.loads} | {each.served.model for each in results.batches}
    told.discard(None)
    if options.model is not None and len(told) > 1:
        names = ", ".join(sorted(str(name) for name in told))
        raise KvplanError(
            f"The results are of different models ({names}), and --model names one.",
            hint="calibrate them one by one, or leave --model out where these names are known",
        )


def _refuse_several(what: str, texts: Iterable[str]) -> None:
    found = list(dict.fromkeys(texts))
    if len(found) > 1:
        raise KvplanError(f"The results are of different {what}: {'; '.join(found)}.", hint="calibrate each separately")

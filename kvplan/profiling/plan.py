"""What a profile runs: one setting, its device and its requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from kvplan.errors import UsageError
from kvplan.machine.device import AskDevice, detect_device
from kvplan.runs.trials import Trial
from kvplan.sweeps.axes import AXES, AxisValue
from kvplan.sweeps.design import base_settings, telling_memory
from kvplan.sweeps.drafting import swept_model
from kvplan.sweeps.feasibility import refuse_architecture, refuse_oversized
from kvplan.sweeps.forecast.prediction import Predictor
from kvplan.sweeps.forecast.under_load import PreparedTrial
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import file_name, implementation_of, make_predictor, notices_of
from kvplan.sweeps.weights import refuse_impossible_weights, resolve_load_format
from kvplan.sweeps.worker.early import ask_own_worker
from kvplan.workload.requests import WorkloadSpec


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """A profile that is ready to run. notices: lines for the user.

    records_allocations: whether torch's allocator keeps its history, on a GPU.
    """

    options: SweepOptions
    predictor: Predictor
    prepared: PreparedTrial
    load_format: str
    notices: tuple[str, ...]
    records_allocations: bool = False

    @property
    def trial(self) -> Trial:
        return self.prepared.trial

    @property
    def workload(self) -> WorkloadSpec:
        return self.prepared.workload

    @property
    def directory_name(self) -> str:
        """``kvplan-profile-<model>``; a time is added by the command."""
        return f"kvplan-profile-{file_name(self.predictor.spec.served_id)}"


def make_profile_plan(
    options: SweepOptions, *, records_allocations: bool = False, ask: AskDevice = ask_own_worker
) -> ProfilePlan:
    """Decide everything, start nothing and write nothing. UsageError or KvplanError for what cannot be done.

    ask: a worker, where this machine may have a GPU.
    """
    ask = cache(ask)
    changes = _one_value_each(options)
    memory_bytes = options.device_memory_bytes()
    if options.is_counted:
        raise UsageError(
            "--load-format none computes nothing, so there is nothing to profile.", hint="use --load-format dummy"
        )
    spec = swept_model(options.model, options.speculative_config)
    refuse_architecture(spec.architecture, model_impl=options.model_impl)
    load_format = resolve_load_format(options)
    refuse_impossible_weights(options.parsed_axes(), spec, load_format, implementation_of(options, spec))
    device = detect_device(options.device, memory_bytes, weight_bytes=4 * spec.num_parameters, ask=ask)
    workload = options.workload_spec(device.kind)
    predictor, calibration_notices = make_predictor(options, spec, device, workload)
    workload = replace(workload, num_prompts=len(predictor.requests))  # a file may hold fewer
    settings = base_settings(predictor).with_changes(**changes)
    if device.kind == "cpu" and memory_bytes is None and "gpu_memory_utilization" not in changes:
        telling = telling_memory(predictor, settings, device.memory_bytes)
        device = detect_device(options.device, telling.num_bytes, reason=telling.reason, ask=ask)
        predictor = replace(predictor, device=device)
    trial = Trial(1, settings, 1, ())
    refuse_oversized(predictor, (trial,), options.model)
    return ProfilePlan(
        options,
        predictor,
        PreparedTrial(trial, workload, predictor, predictor.trial(settings)),
        load_format,
        (*notices_of(options, predictor, (trial,), load_format), *calibration_notices),
        records_allocations and device.kind == "cuda",
    )


def _one_value_each(options: SweepOptions) -> Mapping[str, AxisValue]:
    """The settings that were given. UsageError for a list or a range."""
    values = options.parsed_axes()
    for name, found in values.items():
        if len(found) > 1:
            raise UsageError(
                f"{AXES[name].option} has {len(found)} values, but a profile runs one setting.",
                hint="give one value, or compare them with kvplan sweep",
            )
    return {name: found[0] for name, found in values.items()}

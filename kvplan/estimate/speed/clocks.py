"""Seconds of a decode step and of a prompt: by the data sheet (a roofline), or by what a sweep measured on the device.

A step of decoding reads the weights once for the whole batch and the KV cache of every sequence; prefilling is bound by
matrix multiplications. Pipeline stages run one after the other for one token, side by side for different ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import hypot
from typing import Protocol

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.devices.measured import MeasuredProfile, Origin
from kvplan.estimate.speed.collectives import CollectiveCost, LinkEfficiency, collective_cost
from kvplan.estimate.speed.step_time import Speed, StepShape, StepTimes
from kvplan.estimate.speed.work import ModelWork

# Half of a range, where a profile has no held-out error; and how much wider the range gets for a model
# that the profile was not fitted to (gpt2's coefficients on SmolLM2: 1.0 to 1.5 times the error on gpt2 itself).
_UNKNOWN_ERROR = 0.3
_OTHER_MODEL = 1.5
ANOTHER_RUN = 0.15
"""What another run adds to the error within the run that was calibrated, as squares: another load, another hour.

18 sweeps of gpt2 and SmolLM2 on two cores of an Intel Xeon, 2026-11-22: each of 12 was calibrated and predicted all
others. Without this 70 to 77 % of the figures lie in their range, with it 92 to 95 %; fitted to the other sweeps, 90 %.
Calibrations of many settings need 0.15, those of few, whose own ranges are wider, 0.12 (tools/score_speed_ranges.py).
"""


class Clock(Protocol):
    """How long an instance takes."""

    def decode_seconds(self, num_users: float) -> float:
        """One token for each of ``num_users`` sequences."""
        ...

    def prefill_seconds(self, tokens: int, num_users: float) -> float:
        """Reading one prompt while ``num_users - 1`` others decode."""
        ...


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the data sheet that kernels reach, and what each step costs on top."""

    bandwidth: float
    flops: float
    step_seconds: float
    links: LinkEfficiency


BEST = Efficiency(
    bandwidth=0.85, flops=0.65, step_seconds=0.0005, links=LinkEfficiency(0.8, 8e-6, sends_to_chosen=True)
)
USUAL = Efficiency(
    bandwidth=0.60, flops=0.35, step_seconds=0.003, links=LinkEfficiency(0.5, 25e-6, sends_to_chosen=False)
)


@dataclass(frozen=True, slots=True)
class Roofline:
    """By the data sheet. ``kv_bytes``: of one sequence's cache, on a rank that holds all layers."""

    work: ModelWork
    kv_bytes: float
    bandwidth: float
    flops: float
    step_seconds: float
    collectives: CollectiveCost

    @staticmethod
    def of(work: ModelWork, gpu: GpuProfile, kv_bytes: float, reached: Efficiency) -> Roofline:
        return Roofline(
            work=work,
            kv_bytes=kv_bytes,
            bandwidth=gpu.memory_bandwidth_bytes_per_second * reached.bandwidth,
            flops=gpu.flops(work.compute_dtype) * reached.flops,
            step_seconds=reached.step_seconds,
            collectives=collective_cost(work, gpu, reached.links),
        )

    def decode_seconds(self, num_users: float) -> float:
        work = self.work
        memory = work.stage_bytes(num_users, self.kv_bytes) / self.bandwidth
        compute = work.stage_operations(num_users) / self.flops
        stages = work.layout.pipeline_parallel_size * max(memory, compute)
        return stages + self.collectives.seconds(work.rows(num_users)) + self.step_seconds

    def prefill_seconds(self, tokens: int, num_users: float = 1) -> float:
        """By the data sheet a prompt takes as long in company as alone."""
        compute = self.work.prompt_operations(tokens) / self.flops
        memory = self.work.prompt_bytes(tokens) / self.bandwidth
        return max(compute, memory) + self.collectives.seconds(tokens) + self.step_seconds

    def is_bandwidth_bound(self, num_users: float) -> bool:
        """Whether a decode step waits for memory rather than for arithmetic."""
        read_seconds = self.work.stage_bytes(num_users, self.kv_bytes) / self.bandwidth
        return read_seconds > self.work.stage_operations(num_users) / self.flops


DATA_SHEET = Efficiency(bandwidth=1.0, flops=1.0, step_seconds=0.0, links=BEST.links)
"""What the hardware could do at most: decides what a step waits for."""


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """What a device reached in a sweep, for one model. ``errors``: |predicted / measured - 1| that ranges allow for."""

    speed: Speed
    origin: Origin
    dtype: str
    note: str
    errors: dict[str, float]

    @staticmethod
    def of(profile: MeasuredProfile, model_id: str, dtype: str) -> DeviceSpeed:
        """The profile's coefficients and held-out errors, widened for another run, and for another model or dtype."""
        origin = profile.origin_for(model_id, dtype)
        wider = 1.0 if origin == "measured" else _OTHER_MODEL
        found = {
            name: min(hypot(wider * error.range_pct / 100, ANOTHER_RUN), 0.9) for name, error in profile.errors.items()
        }
        errors = {name: found.get(name, _UNKNOWN_ERROR) for name in ("output_throughput", "tpot", "ttft")}
        return DeviceSpeed(Speed.from_json(profile.coefficients), origin, profile.dtype, profile.as_text(), errors)


@dataclass(frozen=True, slots=True)
class MeasuredClock:
    """The profile's coefficients on this model's work. ``context_tokens``: what a sequence holds on average."""

    work: ModelWork
    gpu: GpuProfile
    kv_bytes: float
    device: DeviceSpeed
    context_tokens: float

    def decode_seconds(self, num_users: float) -> float:
        return self._step(self.work.rows(num_users), 0, self.work.expert_rows(num_users))

    def prefill_seconds(self, tokens: int, num_users: float) -> float:
        """A prompt shares its steps with decoding sequences: what it adds is less than what it costs alone."""
        others = max(num_users - 1, 0)
        if not others:
            return self._step(0, tokens, tokens)
        rows, met = self.work.rows(others), self.work.expert_rows(others)
        return self._step(rows, tokens, met + tokens) - self._step(rows, 0, met)

    def _step(self, rows: float, new_tokens: float, expert_tokens: float) -> float:
        """``rows`` sequences decode on a rank while ``new_tokens`` of one more prompt are read in the same step."""
        stages, context = self.work.layout.pipeline_parallel_size, self.context_tokens
        times = self._step_times(expert_tokens)
        sequences = round(rows + (new_tokens > 0))
        read = (rows * self.kv_bytes + new_tokens / context * self.kv_bytes) / stages
        pairs = (rows * context + new_tokens**2 / 2) / stages
        seconds = stages * times.seconds(round(rows + new_tokens), sequences, sequences, round(read), pairs)
        return seconds + collective_cost(self.work, self.gpu, USUAL.links).seconds(rows + new_tokens)

    def _step_times(self, expert_tokens: float) -> StepTimes:
        """The coefficients on one rank of one stage; K and V are counted in bytes, not in tokens."""
        work, layout = self.work, self.work.layout
        tp, stages = layout.tensor_parallel_size, layout.pipeline_parallel_size
        head_share = min(work.head_parameters / max(work.active_parameters, 1), 1.0)
        weights = work.dense_bytes + work.expert_bytes * work.touched_experts(expert_tokens)
        head_bytes = work.dense_bytes * head_share
        shape = StepShape(
            num_layers=round(work.num_layers / stages),
            body_parameters=work.active_parameters * (1 - head_share) / tp / stages,
            head_parameters=work.active_parameters * head_share / tp / stages,
            body_bytes=weights - head_bytes,
            head_bytes=head_bytes,
            kv_bytes_per_token=1.0,
            attention_width=sum(span.width_per_token for span in work.attention) / tp,
            activation_bytes_per_token=work.step_activation_bytes / tp / stages,
        )
        # Another format than the profile's multiplies as much faster or slower as the data sheet says.
        gpu, device = self.gpu, self.device
        factor = 1.0 if gpu.is_cpu else gpu.flops(work.compute_dtype) / gpu.flops(device.dtype)
        return StepTimes(shape, replace(device.speed, flops=device.speed.flops * factor))

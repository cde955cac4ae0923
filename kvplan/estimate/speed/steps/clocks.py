"""Seconds of a decode step and of a prompt: by the data sheet (a roofline), or by what a sweep measured on the device.

A step of decoding reads the weights once for the whole batch and the KV cache of every sequence; prefilling is bound by
matrix multiplications. Pipeline stages run one after the other for one token, side by side for different ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import hypot
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.devices.measured_profile import MeasuredProfile, Origin
from kvplan.estimate.speed.steps.collectives import CollectiveCost, LinkEfficiency, collective_cost
from kvplan.estimate.speed.steps.kernels.amd_kernels import BEST_OF_AMD, USUAL_OF_AMD, AmdKernels
from kvplan.estimate.speed.steps.rank_step import KernelSpeed
from kvplan.estimate.speed.steps.work import ModelWork

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


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the data sheet that kernels reach, and what each step costs on top: per layer, and once.

    A layer's norms, small kernels and waits take as long on a small model as on a large one.
    """

    bandwidth: float
    flops: float
    layer_seconds: float
    step_seconds: float
    links: LinkEfficiency
    amd: AmdKernels | None = None
    """What AMD's kernels reach instead; None: nobody's fall short."""


BEST = Efficiency(
    bandwidth=0.85,
    flops=0.75,
    layer_seconds=35e-6,
    step_seconds=0.0,
    links=LinkEfficiency(0.8, 4e-6, sends_to_chosen=True),
    amd=BEST_OF_AMD,
)
USUAL = Efficiency(
    bandwidth=0.60,
    flops=0.35,
    layer_seconds=65e-6,
    step_seconds=0.001,
    links=LinkEfficiency(0.5, 25e-6, sends_to_chosen=False),
    amd=USUAL_OF_AMD,
)
"""Both ends of GPUs without a profile. Those with one (profiles/speeds) reach 0.76 to 0.88 of the bandwidth, 0.62 to
0.82 of the 16-bit speed, and pay 33 to 65 us a layer; a small all-reduce in a captured step takes from 4 us on.

Over PCIe, where NVLink does not join cards whose tables have it, ``USUAL.links`` are about the middle of what machines
reach: of the link 0.06 to 0.78 over two GPUs, 0.12 to 0.64 over four and 0.06 to 0.61 over eight (medians 0.57, 0.55
and 0.34), for a small all-reduce 5 to 39, 12 to 19 and 22 to 57 us. Two machines with L40S and one with RTX PRO 6000
are in aiconfigurator-core 0.12.0's tables, eight A800 in issue 50576 of vllm-project/vllm, four V100 in pull request 2
of haohervchb/sglang-V100, RTX 5090 in issue 1639 of NVIDIA/nccl, two H100 NVL in their profile's source; 39 us and 0.06
are of two RTX 5070 Ti that do not see each other's memory (pull request 39605 of sgl-project/sglang).
"""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Step times by the data sheet. ``kv_bytes``: of one sequence's cache, on a rank that holds all layers.

    ``moved_bytes``: activations that a rank writes and reads between products for a token, all layers together.
    """

    work: ModelWork
    kv_bytes: float
    moved_bytes: float
    bandwidth: float
    flops: float
    expert_flops: float
    attention_flops: float
    step_seconds: float
    collectives: CollectiveCost

    @staticmethod
    def of(work: ModelWork, gpu: GpuProfile, kv_bytes: float, reached: Efficiency) -> Roofline:
        amd = reached.amd if gpu.vendor == "amd" else None
        more = 0.0 if amd is None else amd.layer_seconds(work)
        peak, attention_peak = gpu.flops(work.compute_dtype), gpu.flops(work.attention_dtype)
        return Roofline(
            work=work,
            kv_bytes=kv_bytes,
            # AMD's fused experts have their vectors in their times.
            moved_bytes=work.rank_activation_bytes() + (work.routed_bytes() if amd is None else 0.0),
            bandwidth=gpu.memory_bandwidth_bytes_per_second * reached.bandwidth,
            flops=peak * (reached.flops if amd is None else amd.share_of_flops(work)),
            expert_flops=peak * (reached.flops if amd is None else amd.share_of_expert_flops(work)),
            attention_flops=attention_peak * (reached.flops if amd is None else amd.attention_flops),
            step_seconds=reached.step_seconds + reached.layer_seconds * work.num_layers + more,
            collectives=collective_cost(work, gpu, reached.links),
        )

    def decode_seconds(self, num_users: float) -> float:
        work = self.work
        memory = work.stage_bytes(num_users, self.kv_bytes) / self.bandwidth
        rows, met = work.rows(num_users), work.expert_rows(num_users)
        stages = work.layout.pipeline_parallel_size * max(memory, self.product_seconds(rows, met))
        return stages + self.moving_seconds(rows) + self.collectives.seconds(rows, met) + self.step_seconds

    def prefill_seconds(self, tokens: int) -> float:
        """Reading one prompt, alone on the GPUs."""
        attention = self.work.attention_operations(tokens, tokens / 2) / self.attention_flops
        compute = self.work.layout.pipeline_parallel_size * self.product_seconds(tokens, tokens) + attention
        memory = self.work.prompt_bytes(tokens) / self.bandwidth
        others = self.moving_seconds(tokens) + self.collectives.seconds(tokens, tokens)
        return max(compute, memory) + others + self.step_seconds

    def product_seconds(self, rows: float, expert_rows: float) -> float:
        """Products of one stage, as for ``ModelWork.operations``."""
        in_experts = self.work.expert_operations(expert_rows)
        others = self.work.operations(rows, expert_rows) - in_experts
        return others / self.flops + in_experts / self.expert_flops

    def moving_seconds(self, rows: float) -> float:
        """Activations of ``rows`` tokens over all stages: kernels between products, which nothing hides."""
        return rows * self.moved_bytes / self.bandwidth

    def is_bandwidth_bound(self, num_users: float) -> bool:
        """Whether a decode step waits for memory rather than for arithmetic."""
        read_seconds = self.work.stage_bytes(num_users, self.kv_bytes) / self.bandwidth
        return read_seconds > self.work.stage_operations(num_users) / self.flops


DATA_SHEET = Efficiency(bandwidth=1.0, flops=1.0, layer_seconds=0.0, step_seconds=0.0, links=BEST.links)
"""What the hardware could do at most: decides what a step waits for."""


IN_A_SERVER: Final = 1.07
"""How many times as long a step's kernels take in a server as in the tables, which time each alone and over again.

What else a step has is not known (gaps between kernels, caches that another kernel filled, clocks under load), but that
there is more was seen in every generation of GPUs, so one factor stands for all. It has the least mean |log error| of
TPOT and throughput of the published servers known as ``a`` (371 rows; each source counts by the root of its rows), and
other rows had no part in it: of those known as ``b`` and ``c`` TPOT was 18 / 49 % off without it and is 15 / 46,
throughput 15 / 75 and 14 / 66, TTFT 26 / 65 and 26 / 67. Of the few known as ``d``, from other sources, it is even: 26,
36 and 20 rows were 23 / 62, 28 / 64 and 24 / 106 % off and are 28 / 66, 26 / 53 and 31 / 106, with interval scores of
5.45, 1.26 and 6.45 before and 5.56, 1.23 and 6.05 now. Learned from all rows it is 1.09. By generation
(1.04 to 1.13), by engine (1.00 to 1.19) or by kind of model sources that are held out are hardly better off.
"""


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """What a device reached, for one model. ``errors``: |predicted / measured - 1| that ranges allow for.

    engine, engine_version: whose kernels were measured; the version is None for sweeps. ``short_note``: ``note`` in a
    few words.
    """

    speed: KernelSpeed
    origin: Origin
    dtype: str
    note: str
    errors: dict[str, float]
    engine: str = "vllm"
    engine_version: str | None = None
    short_note: str = ""

    def with_gap(self, gap: str) -> DeviceSpeed:
        """The same, saying what was not measured in few words too."""
        return replace(self, note=f"{self.note}; {gap}", short_note=f"{self.short_note or self.note}; {gap}")

    @staticmethod
    def of(profile: MeasuredProfile, model_id: str, dtype: str) -> DeviceSpeed:
        """The profile's coefficients and held-out errors, widened for another run, and for another model or dtype."""
        origin = profile.origin_for(model_id, dtype)
        wider = 1.0 if origin == "measured" else _OTHER_MODEL
        found = {
            name: min(hypot(wider * error.range_pct / 100, ANOTHER_RUN), 0.9) for name, error in profile.errors.items()
        }
        errors = {name: found.get(name, _UNKNOWN_ERROR) for name in ("output_throughput", "tpot", "ttft")}
        speed = KernelSpeed.from_json(profile.speeds)
        origins = (profile.engine, profile.engine_version, profile.short_text)
        return DeviceSpeed(speed, origin, profile.dtype, profile.as_text(), errors, *origins)

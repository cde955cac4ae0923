"""How fast KV comes from a tier, and how long computing it again takes: which hits pay, and from which length on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kvplan.catalog.devices.gpu_profile import REACHED_SHARE, host_bytes_per_second
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.errors import KvplanError
from kvplan.estimate.speed.simulation.interface import GroupClock
from kvplan.fleet.tiers.layouts import CacheLayout

NVME_BYTES_PER_SECOND: Final = 6.5e9
"""One drive on PCIe 4.0 x4 reads as much by its data sheet (Samsung PM9A3: 6.5 to 6.9 GB/s). An assumption."""


@dataclass(frozen=True, slots=True)
class TierLink:
    """bytes_per_second: of each GPU's own bus, or of what all ranks share, as drives (``is_shared``).

    source: where the figure is from, for people.
    """

    name: str
    bytes_per_second: float
    is_shared: bool
    source: str

    def load_seconds(self, num_tokens: float, layout: CacheLayout) -> float:
        """Bring so many tokens into all ranks."""
        each = layout.token_bytes if self.is_shared else layout.rank_token_bytes
        return num_tokens * each / self.bytes_per_second

    def store_seconds(self, num_tokens: float, layout: CacheLayout) -> float:
        """Write what was computed; a copy that all ranks share is written once, by parts (kv_offload/cpu/spec.py)."""
        each = layout.token_bytes / (1 if self.is_shared else layout.num_ranks)
        return num_tokens * each / self.bytes_per_second


def host_link(gpu: GpuProfile, given: float | None) -> TierLink:
    """The bus of each GPU. KvplanError where none is known."""
    if given is not None:
        return TierLink("host memory", given, False, "given")
    if gpu.pcie_bytes_per_second is None:
        raise KvplanError(
            f"It is not known how fast {gpu.id} reads host memory.", hint="say it with --host-bandwidth, in GB/s"
        )
    share = f"{100 * REACHED_SHARE:.0f} % of PCIe's {gpu.pcie_bytes_per_second / 1e9:.0f} GB/s is assumed"
    return TierLink("host memory", host_bytes_per_second(gpu), False, share)


def nvme_link(given: float | None) -> TierLink:
    """All drives of a host together."""
    if given is not None:
        return TierLink("NVMe", given, True, "given")
    return TierLink("NVMe", NVME_BYTES_PER_SECOND, True, "one PCIe 4.0 drive is assumed")


@dataclass
class PrefillTime:
    """Seconds in which an engine reads the beginning of a prompt, in steps of ``step_tokens``.

    Whole steps are summed; within a step a part takes its share, since other prompts get the rest.
    """

    clock: GroupClock
    step_tokens: int
    _sums: list[float] = field(default_factory=lambda: [0.0])

    def seconds(self, num_tokens: int) -> float:
        """Read the first ``num_tokens``."""
        whole, rest = divmod(num_tokens, self.step_tokens)
        while len(self._sums) <= whole + 1:
            self._sums.append(self._sums[-1] + self._step(len(self._sums) - 1))
        return self._sums[whole] + (self._sums[whole + 1] - self._sums[whole]) * rest / self.step_tokens

    def _step(self, number: int) -> float:
        tokens = self.step_tokens
        before = number * tokens
        pairs = tokens * before + tokens * (tokens + 1) / 2
        return self.clock.seconds_beside(tokens, tokens, 1, 1, before + tokens, pairs)


def break_even_tokens(prefill: Callable[[int], float], load: Callable[[int], float], longest: int) -> int | None:
    """Return the shortest hit that is loaded sooner than computed, from which on all are; None where even the longest
    is not."""
    low, high = 1, longest
    if load(high) >= prefill(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if load(middle) < prefill(middle) else (middle + 1, high)
    return low

"""What a tier of a size brings: hits beyond the pool's, seconds of prefill less, seconds of loading and storing more.

Hits of several tiers are not added up. vLLM's host cache takes in every block of prompts that is computed, and ranks
what the pool hits as well (prepare_store of vllm/v1/kv_offload/cpu/manager.py; offload_prompt_only in base.py: answers
stay out), as LMCache and SGLang's write_through do. So it holds what the pool holds, and a request finds what the
larger of both has. A request that loads does not rank what it found in the pool; tools/check_cache.py --vllm runs
vLLM's manager beside the curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from kvplan.catalog.devices.gpu_profile import REACHED_SHARE, host_bytes_per_second
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.published_errors import ErrorInterval
from kvplan.errors import KvplanError
from kvplan.estimate.speed.simulation.interface import GroupClock
from kvplan.fleet.tiers.curves import CacheCurve, Hit
from kvplan.fleet.tiers.layouts import CacheLayout

NVME_BYTES_PER_SECOND: Final = 6.5e9
"""One drive on PCIe 4.0 x4 reads as much by its data sheet (Samsung PM9A3: 6.5 to 6.9 GB/s). An assumption."""
Verdict = Literal["pays", "open", "harms"]
ENOUGH_SHARE: Final = 0.9
"""Of the hits of the largest size that counts: the smallest size with so many is proposed."""
HOST_BYTES_PER_GPU: Final = 2_000_000_000_000 // 8
"""Of a DGX H100 and a DGX B200, which have 2 TB for eight GPUs (NVIDIA's data sheets). A proposal stays within it."""
_EXACT: Final = ErrorInterval(1.0, 1.0)


@dataclass(frozen=True, slots=True)
class TierWorth:
    """A tier of ``size_bytes`` over the trace, all replicas together. Seconds are an engine's.

    num_tokens: of prompts, that are found in this tier or one above it; num_extra_tokens: in none above. saved_seconds:
    of prefill, against the tiers above alone; load_seconds and store_seconds: on the tier's links.
    """

    size_bytes: int
    num_tokens: int
    num_extra_tokens: int
    saved_seconds: float
    load_seconds: float
    store_seconds: float
    best_share: float
    errors: ErrorInterval = _EXACT

    @property
    def net_seconds(self) -> float:
        """What is saved in the end, where storing costs nothing."""
        return self.saved_seconds - self.load_seconds

    @property
    def sure_seconds(self) -> float:
        """What is saved at the low end of the prediction, where storing delays the engine as long as it takes."""
        return self.saved_seconds * self.errors.low - self.load_seconds - self.store_seconds

    @property
    def verdict(self) -> Verdict:
        """Stores run beside the engine's steps and may cost nothing or all of their time: between both it is open."""
        if self.sure_seconds > 0:
            return "pays"
        return "open" if self.saved_seconds * self.errors.high > self.load_seconds else "harms"


def enough_of(tiers: Sequence[TierWorth], most_bytes: int | None = None) -> TierWorth:
    """Return the smallest size that finds nearly all that the largest finds, of those of at most ``most_bytes``.

    The largest of these where it finds nothing more than what is above it, and a larger one does.
    """
    sizes = [each for each in tiers if most_bytes is None or each.size_bytes <= most_bytes]
    if not sizes[-1].num_extra_tokens and tiers[-1].num_extra_tokens:
        return sizes[-1]
    return next(each for each in sizes if each.num_tokens >= ENOUGH_SHARE * sizes[-1].num_tokens)


def deeper(above: Sequence[Hit], below: Sequence[Hit]) -> list[Hit]:
    """Return what each request finds in either of two tiers."""
    return [max(first, second, key=lambda hit: hit.num_tokens) for first, second in zip(above, below, strict=True)]


@dataclass(frozen=True)
class TierMeasure:
    """Measures sizes of one tier below ``above``, which has the hits of the tiers above it."""

    curve: CacheCurve
    above: tuple[Hit, ...]
    link: TierLink
    prefill: PrefillTime
    errors: ErrorInterval | None = None

    def worth(self, size_bytes: int) -> TierWorth:
        """Return what a tier of this size brings."""
        layout = self.curve.layout
        num_blocks = layout.blocks_of(size_bytes)
        own = self.curve.hits(num_blocks)
        both = deeper(self.above, own)
        seconds = self.prefill.seconds
        extra = sum(hit.num_tokens - before.num_tokens for before, hit in zip(self.above, both, strict=True))
        saved = sum(
            seconds(hit.num_tokens) - seconds(before.num_tokens)
            for before, hit in zip(self.above, both, strict=True)
            if hit.num_tokens > before.num_tokens
        )
        stored = sum(hit.num_prompt_tokens - hit.num_tokens for hit in own)
        return TierWorth(
            size_bytes=size_bytes,
            num_tokens=sum(hit.num_tokens for hit in both),
            num_extra_tokens=extra,
            saved_seconds=saved,
            load_seconds=self.link.load_seconds(extra, layout),
            store_seconds=self.link.store_seconds(stored, layout),
            best_share=self.curve.best_share(num_blocks),
            errors=self.errors or _EXACT,
        )


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

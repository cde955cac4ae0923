"""One deployment as it is sized: its bytes, its blocks, how many sequences it holds, and what stands in its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.vllm.ranges import KvRange
from kvplan.settings import FilledSettings


@dataclass(frozen=True, slots=True)
class SizedDeployment:
    """One model on one kind of GPU. Bytes are per GPU; blocks, tokens and concurrency are the deployment's.

    ``block_size``: of the pool, where layers of several kinds share blocks larger than in the ``settings``.
    """

    gpu: str
    engine: str
    settings: FilledSettings
    budget_bytes: int
    weight_bytes: int
    activation_peak_bytes: int
    overhead_bytes: int
    kv_pool_bytes: int
    num_blocks: int
    block_size: int
    kv_cache_tokens: int
    max_concurrency: float
    fits: bool
    limit: str | None
    """What stands in the way when it does not fit: the missing bytes, or the largest length that fits."""
    longest_context: int | None = None
    """The longest sequence that fits, where nothing but its length is in the way."""
    kv_range: KvRange | None = None
    """Where 9 of 10 start-ups lie, the prediction inside; None where no start-up has been compared."""
    most_num_seqs: int | None = None
    """The largest ``max_num_seqs`` that starts, where the blocks limit it."""
    graph_bytes: int = 0
    """What CUDA graphs take."""
    drafter_bytes: int | None = None
    """A drafter's part of ``weight_bytes`` as the engine keeps it; None where that is the checkpoint's share."""
    graphs_in_overhead: bool = True
    """Whether ``overhead_bytes`` has them: older releases of vLLM capture them later, outside their budget."""

    @property
    def counted_gpu(self) -> str:
        """``h200``, or ``8 x h200``."""
        num_gpus = ParallelLayout.of(self.settings).num_gpus
        return self.gpu if num_gpus == 1 else f"{num_gpus} x {self.gpu}"

    @property
    def kv_pool_bytes_range(self) -> tuple[int, int] | None:
        """(low, high) of ``kv_pool_bytes``."""
        return None if self.kv_range is None else self.kv_range.pool_bytes

    @property
    def kv_cache_tokens_range(self) -> tuple[int, int] | None:
        """(low, high) of ``kv_cache_tokens``."""
        return None if self.kv_range is None else self.kv_range.tokens

    @property
    def most_num_seqs_range(self) -> tuple[int, int] | None:
        """(low, high) of ``most_num_seqs``."""
        return None if self.kv_range is None else self.kv_range.num_seqs

    @property
    def sure_num_seqs(self) -> int | None:
        """The low end of ``most_num_seqs``, or the figure itself where nothing is known of its width or it is 0."""
        ends = self.most_num_seqs_range
        return self.most_num_seqs if ends is None else ends[0] or self.most_num_seqs

    @property
    def max_concurrency_range(self) -> tuple[float, float] | None:
        """(low, high) of ``max_concurrency``."""
        return None if self.kv_range is None else self.kv_range.concurrency


@dataclass(frozen=True, slots=True)
class Placement:
    """A deployment and the defaults that were taken for it.

    sequences_of: how many sequences of so many tokens its pools hold at once while they decode.
    """

    deployment: SizedDeployment
    sequences_of: Callable[[int], int]
    notes: tuple[str, ...] = ()

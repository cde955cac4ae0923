"""What a replica's prefix cache holds of a prompt, by model, layout and KV format: vLLM's blocks.

Groups that keep every token hold a chain's blocks. Of windows and states only what stands at an end is kept, see
``replayed``. Host memory keeps the blocks of all ranks; of latents, which every rank has alike, one copy where tensor
parallelism alone divides the model (vllm/distributed/kv_transfer/kv_connector/v1/offloading/config.py,
replicated_layout, read in 0.33; vllm/v1/kv_offload/cpu/spec.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.vllm.groups import PageGroup
from kvplan.estimate.vllm.prediction import PredictedRanks, fill_smallest, predict_ranks
from kvplan.estimate.vllm.prefix_hits import prefix_hits
from kvplan.fleet.tiers.replayed import Weights
from kvplan.settings import ServingSettings

_KEPT_WHOLE: Final = ("full", "every_state")
_IN_WINDOWS: Final = ("sliding", "chunked")
_STATES: Final = ("state", "ngram_state")


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """unit_tokens: those of which a hit is a multiple; dropped_tokens: found and computed again for a drafter.

    weights: blocks that a unit and an end take. num_blocks: of one engine's pool; block_bytes: of one on all ranks, and
    host_block_bytes in host memory. num_ranks: those that load their part at the same time.
    """

    kv_cache_dtype: str
    unit_tokens: int
    dropped_tokens: int
    weights: Weights
    num_blocks: int
    block_bytes: int
    host_block_bytes: int
    num_ranks: int
    num_engines: int = 1

    @property
    def token_bytes(self) -> float:
        """What a token of a long prompt takes in host memory."""
        return self.weights.unit * self.host_block_bytes / self.unit_tokens

    @property
    def rank_token_bytes(self) -> float:
        """What a token takes on one GPU."""
        return self.weights.unit * self.block_bytes / self.num_ranks / self.unit_tokens

    @property
    def end_bytes(self) -> int:
        """What stands where a prompt can be resumed, windows and states, takes in host memory."""
        return self.weights.end * self.host_block_bytes

    @property
    def pool_bytes(self) -> int:
        """One engine's pool on all its GPUs."""
        return self.num_blocks * self.block_bytes

    def blocks_of(self, host_bytes: int) -> int:
        """Return how many blocks host memory or a drive of this size keeps."""
        return host_bytes // self.host_block_bytes


def cache_layout(
    spec: ModelSpec, gpu: GpuProfile, settings: ServingSettings, version: str, *, shares_prefixes: bool
) -> CacheLayout:
    """Return the layout on one replica. KvplanError where vLLM finds no prefixes, or it is not known what it keeps."""
    ranks = predict_ranks(spec, gpu, settings, version)
    found, layout = fill_smallest(ranks), ParallelLayout.of(settings)
    hits = prefix_hits(spec, settings, ranks.release, found.rank.blocks, shares_prefixes=shares_prefixes)
    if not hits.hit_tokens:
        raise KvplanError(
            f"vLLM {ranks.release.text} finds no shared prefixes of {spec.served_id}.",
            hint="use a later release, such as vllm@0.33, and leave prefix caching on",
        )
    weights = _weights(spec, ranks, hits.hit_tokens)
    block_bytes = layout.tensor_parallel_size * sum(rank.blocks.bytes_per_block for rank in ranks.ranks)
    copies = layout.tensor_parallel_size if _keeps_one_copy(spec, layout) else 1
    return CacheLayout(
        kv_cache_dtype=found.settings.serving.kv_cache_dtype,
        unit_tokens=hits.hit_tokens,
        dropped_tokens=hits.dropped_tokens,
        weights=weights,
        num_blocks=found.num_blocks - (1 if ranks.release.reserves_null_block else 0),
        block_bytes=block_bytes,
        host_block_bytes=block_bytes // copies,
        num_ranks=layout.tensor_parallel_size * layout.pipeline_parallel_size,
        num_engines=layout.data_parallel_size,
    )


def _keeps_one_copy(spec: ModelSpec, layout: ParallelLayout) -> bool:
    return spec.is_latent and not spec.has_state and layout.pipeline_parallel_size == 1


def _weights(spec: ModelSpec, ranks: PredictedRanks, unit: int) -> Weights:
    plans = [rank.blocks for rank in ranks.ranks]
    if len({tuple(group.page.kind for group in plan.groups) for plan in plans}) > 1:
        raise KvplanError(
            f"The pipeline stages of {spec.served_id} keep unlike kinds of layers.", hint="use --tp instead of --pp"
        )
    groups = plans[0].groups
    whole = sum(unit // group.page.block_size for group in groups if group.page.kind in _KEPT_WHOLE)
    ends = sum(_end_blocks(group) for group in groups)
    # Windows and states have to be kept only where prompts can be resumed, and where shared beginnings end.
    if ends and not (ranks.release.pins_shared_prefixes and ranks.release.keeps_resumed_places_only):
        raise KvplanError(
            f"It is not known what vLLM {ranks.release.text} keeps of windows and states in its prefix cache.",
            hint="use vllm@0.33",
        )
    if not whole:
        raise KvplanError(f"{spec.served_id} has no layer that keeps every token.", hint="its cache needs no curve")
    return Weights(whole, ends)


def _end_blocks(group: PageGroup) -> int:
    """Return the blocks that a hit needs of a group: a window's, as _contiguous_blocks_for_hit has them, or a state."""
    page = group.page
    if page.kind in _STATES:
        return 1
    if page.kind not in _IN_WINDOWS:
        return 0
    reach = page.window_tokens or 0
    return -(-(reach - 1 if page.kind == "sliding" else reach) // page.block_size)

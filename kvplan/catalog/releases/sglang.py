"""SGLang's releases: what each sets by the GPU's memory where nothing is said, and its kernels.

Sources and values: ``profiles/releases/sglang.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from kvplan.catalog.releases.facts import Number, ReleaseTable, load_releases, release_number
from kvplan.units import GIB

_MANY_GPUS = 4
_BUFFERED_STATES = 2


@dataclass(frozen=True, slots=True, eq=False)  # one object for each release
class SglangRelease:
    """One release of SGLang: a field for each fact of the table."""

    version: Number
    memory_tiers: tuple[tuple[float | None, int, int, int], ...]
    static_share: Literal["shares", "tiers", "terms"]
    adjusts_for_images: bool
    without_images: tuple[str, ...]
    captures_prompts: bool
    uncaptured_prompts: tuple[Literal["stages", "groups", "latents", "plain latents"], ...]
    uncaptured_architectures: tuple[str, ...]
    captured_with_images: tuple[str, ...]
    uncaptured_on_blackwell: tuple[str, ...]
    graphs_within_seats: bool
    image_cache_mib: int
    serves_images_on_hopper: tuple[str, ...]
    sparse_cache_on_blackwell: Literal["auto", "fp8"]
    counts_sparse_scales: bool
    sparse_scales_on_sm12: tuple[str, ...]
    elides_index_keys: bool
    caps_windows: bool
    pads_states: bool
    states_per_request: int
    buffered_states: tuple[str, ...]
    stated_cache: tuple[str, ...]
    attends_on_each_gpu: bool
    names_attention_groups: bool
    narrow_tiles: bool
    block_products_share: float
    latent_layer_seconds: float
    latent_layers_measured: bool
    latent_prompt_share: float
    trtllm_experts: Mapping[str, tuple[str, ...]]
    fewer_expert_launches: bool
    routing_seconds: Mapping[str, float]
    norm_seconds: Mapping[str, float]
    norm_all_reduces: Mapping[str, int]

    def chunked_prefill_tokens(self, memory_bytes: int) -> int:
        """Return ``chunked_prefill_size``: tokens of prompts in a step at most."""
        return self._tier(memory_bytes)[0]

    def group_prefill_tokens(self, chunk_tokens: int, num_groups: int) -> int:
        """Return what each of ``num_groups`` that attend beside each other has of ``chunked_prefill_size``.

        They share it, but where every GPU is a group each of them has half of it (server_args.py).
        """
        if num_groups > 1 and self.attends_on_each_gpu:
            return max(chunk_tokens // 2, 1)
        return max(chunk_tokens // num_groups, 1)

    def largest_graph_rows(self, memory_bytes: int, tensor_parallel_size: int, max_num_seqs: int | None = None) -> int:
        """Return ``cuda_graph_max_bs``: sequences of the largest decode step that is captured.

        ``max_num_seqs``: what --max-running-requests says, None where it says nothing.
        """
        _, few, many = self._tier(memory_bytes)
        rows = few if tensor_parallel_size < _MANY_GPUS else many
        return rows if max_num_seqs is None or not self.graphs_within_seats else min(rows, max_num_seqs)

    def state_slots(self, architecture: str) -> int:
        """Return how many slots of recurrent states there are for each request that may run.

        One is its own, the others are for prefixes that are kept and for states of the step before.
        """
        return self.states_per_request + (_BUFFERED_STATES if architecture in self.buffered_states else 0)

    def _tier(self, memory_bytes: int) -> tuple[int, int, int]:
        """(tokens of a prefill chunk, rows of the largest graph on up to three GPUs, on more)."""
        return next(sizes for below, *sizes in self.memory_tiers if below is None or memory_bytes < below * GIB)  # type: ignore[return-value]


@cache
def _table() -> ReleaseTable[SglangRelease]:
    return load_releases("sglang", SglangRelease)


def sglang_release(version: str = "latest") -> SglangRelease:
    """Return the facts of a version as printed; the newest ones of ``latest`` and of what is no version."""
    return _table().at(release_number(version))

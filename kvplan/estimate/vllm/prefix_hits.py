"""Whether vLLM finds what prompts begin with in its prefix cache, in steps of how many tokens, and what is held once.

Layers of several kinds agree on a length that is a multiple of all their blocks (HybridKVCacheCoordinator in
vllm/v1/core/kv_cache_coordinator.py). The state of a sequence is kept where a prompt ends, and where a shared prefix
does only in releases that look for it (``pins_shared_prefixes``). A drafter that reads the model's hidden states, EAGLE
and multi-token prediction, has the last block that is found computed again (drop_eagle_block in
single_type_kv_cache_manager.py). Windows share what lies in them too, which is not counted here.
"""

from __future__ import annotations

from math import lcm
from typing import Final, NamedTuple

from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.vllm.groups import BlockPlan
from kvplan.estimate.vllm.pages import PER_REQUEST
from kvplan.estimate.vllm.settings import caches_prefixes
from kvplan.settings import ServingSettings

DROP_A_BLOCK: Final = ("eagle", "eagle3", "mtp")


class PrefixHits(NamedTuple):
    """hit_tokens: those of which a hit is a multiple, 0 where nothing is found; dropped_tokens: found and computed all
    the same."""

    hit_tokens: int
    dropped_tokens: int = 0


def prefix_hits(
    spec: ModelSpec, asked: ServingSettings, release: VllmRelease, plan: BlockPlan, *, shares_prefixes: bool
) -> PrefixHits:
    """Hits of a model on a rank with ``plan``. ``shares_prefixes``: other prompts begin alike, not only a chat's."""
    has_states = bool(spec.states)
    if not caches_prefixes(spec, asked, release):
        return PrefixHits(0)
    if has_states and shares_prefixes and not release.pins_shared_prefixes:
        return PrefixHits(0)
    unit = lcm(*(group.page.block_size for group in plan.groups if group.page.kind not in PER_REQUEST))
    drafter = spec.drafter
    return PrefixHits(unit, unit if drafter is not None and drafter.method in DROP_A_BLOCK else 0)


def shared_blocks(plan: BlockPlan, prefix_tokens: int) -> int:
    """Blocks of a prefix that all who begin with it hold together."""
    return sum(prefix_tokens // group.page.block_size for group in plan.groups if group.page.kind == "full")

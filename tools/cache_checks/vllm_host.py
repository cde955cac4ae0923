"""What vLLM's own manager of host memory finds of a trace's requests, one after the other.

Runs vllm.v1.kv_offload.cpu.manager.CPUOffloadingManager, which needs vLLM 0.33 and no GPU, as its scheduler calls it
(vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py): lookups begin behind what the GPU's pool holds;
a request that loads offers what is behind the load, another one everything from its first block on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cache_checks.own_rule import Found, Name, OwnTiers, names_of
from kvplan.fleet.tiers.chains import Chain


def found_by_vllm(chains: Sequence[Chain], num_blocks: int, num_host: int) -> list[Found]:
    """Return what each request finds in a pool of ``num_blocks`` and host memory of ``num_host``."""
    from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

    manager, pool = CPUOffloadingManager(num_host), OwnTiers(num_blocks)
    found = []
    for number, chain in enumerate(chains):
        names = names_of(chain, number)
        in_pool = pool.use(names, chain.most_hit_blocks).in_pool
        found.append(Found(in_pool, _use(manager, number, names, in_pool, chain.most_hit_blocks), 0))
    return found


def _use(manager: Any, number: int, names: Sequence[Name], in_pool: int, most: int) -> int:
    """Return how many blocks are loaded from host memory."""
    from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key

    context = ReqContext(req_id=str(number))
    keys = [make_offload_key(repr(name).encode(), 0) for name in names]
    for place, key in enumerate(keys):
        context.set_offload_key_position(key, place + 1)
    manager.on_new_request(context)
    loaded = 0
    while in_pool + loaded < most and manager.lookup(keys[in_pool + loaded], context) is LookupResult.HIT:
        loaded += 1
    offered = 0
    if loaded:
        of_load = keys[in_pool : in_pool + loaded]
        manager.prepare_load(of_load, context)
        manager.complete_load(of_load, context)
        offered = in_pool + loaded
    if offered < len(keys):
        stored = manager.prepare_store(keys[offered:], context)
        if stored is not None:
            manager.complete_store(stored.keys_to_store, context)
    manager.on_request_finished(context)
    return loaded

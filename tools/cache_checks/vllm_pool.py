"""What vLLM's own block manager finds of requests one after the other, where some layers keep windows.

Runs vllm.v1.core.kv_cache_manager.KVCacheManager, which needs vLLM 0.33 and no GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cache_checks.prompts import token_ids
from kvplan.fleet.requests import FleetRequest

_CHUNK = 2048


def found_by_pool(requests: Sequence[FleetRequest], block_tokens: int, window: int, num_blocks: int) -> list[int]:
    """Return the tokens that each request finds, with one group of full attention and two of windows."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher, manager = get_request_block_hasher(block_tokens, sha256), _manager(block_tokens, window, num_blocks)
    found = []
    for each in requests:
        params = SamplingParams(max_tokens=1)
        request = Request(str(each.number), token_ids(each), params, None, block_hasher=hasher)
        found.append(_serve(manager, request))
    return found


def _manager(block_tokens: int, window: int, num_blocks: int) -> Any:
    import torch
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec

    page: dict[str, Any] = {"block_size": block_tokens, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float16}
    windows = SlidingWindowSpec(**page, sliding_window=window)
    groups = [KVCacheGroupSpec(["full"], FullAttentionSpec(**page))]
    groups += [KVCacheGroupSpec([f"window {number}"], windows) for number in range(2)]
    config = KVCacheConfig(num_blocks, [], groups, prefix_cache_retention_interval=0)
    return KVCacheManager(
        config,
        max_model_len=1 << 17,
        scheduler_block_size=block_tokens,
        hash_block_size=block_tokens,
        max_in_flight_tokens=_CHUNK,
    )


def _serve(manager: Any, request: Any) -> int:
    blocks, found, request.shared_prefix_boundary = manager.get_computed_blocks(request)
    num_computed = found
    while num_computed < request.num_tokens:
        count = min(_CHUNK, request.num_tokens - num_computed)
        is_first = num_computed == found
        taken = manager.allocate_slots(request, count, found if is_first else 0, blocks if is_first else None)
        assert taken is not None, "the pool has no room for a request"
        num_computed += count
        request.num_computed_tokens = num_computed
    manager.free(request)
    return int(found)

"""The blocks of a replica's KV cache: who holds them, what is found again, what is evicted.

vLLM's rules (vllm/v1/core/block_pool.py and kv_cache_manager.py): only full blocks are found again; a block that nobody
holds lies free until it is taken, the one let go longest ago first, of one request the deepest first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from kvplan.fleet.replicas.setup import PoolLayout
from kvplan.fleet.requests import FleetRequest

BlockKey = tuple[int, int]
"""A key of a run, and which block of the prompt it is."""


@dataclass(slots=True)
class Held:
    """Blocks of one request in the pool. keys: of the full ones that can be found, in order."""

    request: FleetRequest
    blocks: list[BlockKey] = field(default_factory=list)
    num_cached: int = 0


class BlockPool:
    """Blocks of one data-parallel group, of full attention only."""

    def __init__(self, layout: PoolLayout) -> None:
        self._size = layout.groups[0].block_size
        self.num_blocks = self.num_free = layout.num_blocks
        self._caches = layout.caches_prefixes
        self._refs: dict[BlockKey, int] = {}
        self._free: OrderedDict[BlockKey, None] = OrderedDict()
        self._own = 0

    def match(self, request: FleetRequest) -> int:
        """Tokens of the prompt that are found, at most all but the last."""
        if not self._caches:
            return 0
        found, most = 0, (request.num_prompt_tokens - 1) // self._size
        for block in self._keys(request, most):
            if block not in self._refs and block not in self._free:
                break
            found += 1
        return found * self._size

    def _keys(self, request: FleetRequest, count: int) -> list[BlockKey]:
        keys, place = [], 0
        for block in range(count):
            last = (block + 1) * self._size
            while place < len(request.runs) and request.runs[place].end < last:
                place += 1
            if place == len(request.runs):
                if request.answer_key is None:
                    break
                keys.append((request.answer_key, block))
            else:
                keys.append((request.runs[place].key, block))
        return keys

    def start(self, request: FleetRequest, num_found: int) -> Held:
        """Take what was found for ``request``."""
        held = Held(request)
        for block in self._keys(request, num_found // self._size):
            if block in self._free:
                del self._free[block]
                self.num_free -= 1
            self._refs[block] = self._refs.get(block, 0) + 1
            held.blocks.append(block)
        held.num_cached = len(held.blocks)
        return held

    def missing(self, held_blocks: int, num_tokens: int) -> int:
        return max(-(-num_tokens // self._size) - held_blocks, 0)

    def grow(self, held: Held, num_tokens: int) -> bool:
        """Hold blocks for ``num_tokens``, those full can be found then; False where too few are free."""
        count = self.missing(len(held.blocks), num_tokens)
        if count > self.num_free:
            return False
        self.num_free -= count
        for _ in range(count):
            self._own += 1
            held.blocks.append((-self._own, 0))
        while len(self._free) > self.num_free:
            self._free.popitem(last=False)
        self._name(held, num_tokens)
        return True

    def _name(self, held: Held, num_tokens: int) -> None:
        full = num_tokens // self._size
        keys = self._keys(held.request, full)
        for place in range(held.num_cached, len(keys)):
            key = keys[place]
            if key in self._refs or key in self._free:
                continue
            held.blocks[place] = key
            self._refs[key] = 1
        held.num_cached = max(held.num_cached, len(keys))

    def let_go(self, held: Held) -> None:
        for block in reversed(held.blocks):
            self.num_free += 1
            if block in self._refs:
                self._refs[block] -= 1
                if self._refs[block]:
                    self.num_free -= 1
                    continue
                del self._refs[block]
                self._free[block] = None
        held.blocks.clear()

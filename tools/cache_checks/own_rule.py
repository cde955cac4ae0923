"""The rule of the tiers of kvplan's own engine, block by block, for requests one after the other.

    pool    least recently used, the deepest block of a request first; what is evicted goes to
    host    least recently used by eviction and by loading; what came back stays there, too; what is evicted goes to
    disk    the same; files are written before the request's step, after those of its evictions that are there already
            count as used

So it is no plain LRU of both sizes together: what was loaded lies in the pool and in the tier at once. Tiers of vLLM,
LMCache and SGLang take in what is computed instead, and hold what the pool holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from kvplan.fleet.tiers.chains import Chain

Name = tuple[object, int]


class Found(NamedTuple):
    """Blocks of one prompt by where they were found."""

    in_pool: int
    in_host: int
    on_disk: int


class OwnTiers:
    """num_blocks: of the pool, one of which the request that runs needs for tokens that fill no block."""

    def __init__(self, num_blocks: int, num_host: int = 0, num_disk: int = 0) -> None:
        self._pool: OrderedDict[Name, None] = OrderedDict()
        self._host: OrderedDict[Name, None] = OrderedDict()
        self._disk: OrderedDict[Name, None] = OrderedDict()
        self._unwritten: list[Name] = []
        self._num_blocks, self._num_host, self._num_disk = num_blocks - 1, num_host, num_disk

    def use(self, names: Sequence[Name], most: int) -> Found:
        """Serve one request whose whole blocks are ``names``, of which ``most`` may be found."""
        found: list[Name] = []
        for name in names[:most]:
            if name not in self._pool and name not in self._host and name not in self._disk:
                break
            found.append(name)
        missing = [name for name in found if name not in self._pool]
        in_host = sum(name in self._host for name in missing)
        for name in missing:
            tier = self._host if name in self._host else self._disk
            tier.move_to_end(name)
        for name in found:
            self._pool.pop(name, None)
        self._make_room(self._num_blocks - len(names), frozenset(missing))
        self._write()
        for name in reversed(names):
            self._pool.pop(name, None)
            self._pool[name] = None
        return Found(len(found) - len(missing), in_host, len(missing) - in_host)

    def _make_room(self, most: int, pinned: frozenset[Name]) -> None:
        while len(self._pool) > most:
            name, _ = self._pool.popitem(last=False)
            self._to_host(name, pinned)

    def _to_host(self, name: Name, pinned: frozenset[Name]) -> None:
        if not self._num_host:
            self._to_disk(name)
            return
        if name not in self._host and len(self._host) >= self._num_host:
            oldest = next((each for each in self._host if each not in pinned), None)
            if oldest is None:
                return
            del self._host[oldest]
            self._to_disk(oldest)
        self._host[name] = None
        self._host.move_to_end(name)

    def _to_disk(self, name: Name) -> None:
        if name in self._disk:
            self._disk.move_to_end(name)
        elif self._num_disk:
            self._unwritten.append(name)

    def _write(self) -> None:
        for name in self._unwritten:
            if name not in self._disk and len(self._disk) >= self._num_disk:
                self._disk.popitem(last=False)
            self._disk[name] = None
            self._disk.move_to_end(name)
        self._unwritten.clear()


def names_of(chain: Chain, number: int) -> list[Name]:
    """Return the whole blocks of a prompt, each with a name that says all before it."""
    names: list[Name] = [(piece.key, place) for piece in chain.pieces for place in range(piece.first, piece.end)]
    own = [(-1 - number, place) for place in range(len(names), chain.num_prompt_blocks)]
    return (names + own)[: chain.num_prompt_blocks]


def found_by_rule(chains: Sequence[Chain], num_blocks: int, num_host: int = 0, num_disk: int = 0) -> list[Found]:
    """Return what each request finds."""
    tiers = OwnTiers(num_blocks, num_host, num_disk)
    return [tiers.use(names_of(chain, number), chain.most_hit_blocks) for number, chain in enumerate(chains)]

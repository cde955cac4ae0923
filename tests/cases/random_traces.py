"""Traces with shared beginnings, drawn at random, and caches that hold block by block what they say."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from kvplan.fleet.requests import FleetRequest, TokenRun
from kvplan.fleet.tiers.chains import Chain

Block = tuple[int, int]


def branching_trace(seed: int, count: int = 120, branches: int = 3, run_tokens: int = 48) -> list[FleetRequest]:
    """Walks down a tree of runs; a prompt ends within its last run, and has an answer that nobody else has."""
    rng = random.Random(seed)
    keys: dict[tuple[int, ...], int] = {}
    requests = []
    for number in range(count):
        path: tuple[int, ...] = ()
        runs = []
        for depth in range(rng.randint(1, 5)):
            path = (*path, rng.randrange(branches if depth else 2))
            runs.append(TokenRun(keys.setdefault(path, len(keys)), (depth + 1) * run_tokens))
        if rng.random() < 0.5:
            cut = rng.randint(1, run_tokens - 1)
            runs[-1] = TokenRun(1000 + number, runs[-1].end - cut)
        prompt = runs[-1].end
        requests.append(FleetRequest(number, float(number), prompt, rng.randint(1, 40), tuple(runs)))
    return requests


def chat_trace(seed: int, num_chats: int = 12, turns: int = 6) -> list[FleetRequest]:
    """Chats that grow, their turns mixed; an answer is the beginning of what the next turn says."""
    rng = random.Random(seed)
    sizes = dict.fromkeys(range(num_chats), 0)
    order = [chat for chat in range(num_chats) for _ in range(turns)]
    rng.shuffle(order)
    requests = []
    for number, chat in enumerate(order):
        prompt, answer = sizes[chat] + rng.randint(1, 60), rng.randint(1, 40)
        sizes[chat] = prompt + answer
        requests.append(FleetRequest(number, float(number), prompt, answer, (TokenRun(chat, prompt),), answer_key=chat))
    return requests


def blocks_of(chain: Chain, number: int) -> list[tuple[object, int]]:
    """The blocks of a chain one by one, each with a name that says all before it."""
    names: list[tuple[object, int]] = [
        (piece.key, place) for piece in chain.pieces for place in range(piece.first, piece.end)
    ]
    return names + [(-1 - number, place) for place in range(len(names), chain.num_blocks)]


class PlainCache:
    """Least recently used, block by block."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._kept: OrderedDict[object, None] = OrderedDict()

    def hits(self, names: Sequence[object], most: int) -> int:
        """Look for the longest beginning, then use every block, the deepest first."""
        found = 0
        while found < most and names[found] in self._kept:
            found += 1
        for name in reversed(names):
            self._kept[name] = None
            self._kept.move_to_end(name)
        while len(self._kept) > self._num_blocks:
            self._kept.popitem(last=False)
        return found


def replayed_hits(chains: Iterable[Chain], num_blocks: int) -> list[int]:
    """Return what each request finds."""
    cache = PlainCache(num_blocks)
    return [cache.hits(blocks_of(chain, number), chain.most_hit_blocks) for number, chain in enumerate(chains)]

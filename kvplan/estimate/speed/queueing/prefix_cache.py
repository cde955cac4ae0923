"""What one group's pool keeps of what it has computed, for prompts that begin alike (``sharing`` has the rules).

A prefix is one of a load's shared ones, or what a chat has said so far. Those in use are held; the others lie free in
the order in which they were let go, and the first of them make room for what runs.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from kvplan.estimate.speed.queueing.sharing import PromptSharing

_Key = tuple[str, int]


@dataclass(slots=True, eq=False)
class Chat:
    """prefix: which of the shared ones it begins with. turn: requests that were sent before the next. known: tokens
    that the next one's prompt begins with, the prefix among them."""

    number: int
    prefix: int
    turn: int
    known: int


@dataclass(slots=True, eq=False)
class Cached:
    """One sequence's part of the cache. found: tokens that need not be computed. revived: those of them that nobody
    uses. shared: tokens that lie in a prefix which others use too."""

    chat: Chat
    found: int = 0
    revived: int = 0
    shared: int = 0


class PrefixCache:
    """pool_tokens: those of the group. unit: tokens of which a hit is a multiple; 0: nothing is cached. dropped_tokens:
    as for ``SchedulingRules``.

    extra_tokens: held beside those of reading sequences that were computed by themselves, and all of decoding ones.
    """

    def __init__(self, sharing: PromptSharing, pool_tokens: float, unit: int, dropped_tokens: int = 0) -> None:
        self._sharing, self._pool_tokens, self._unit, self._dropped = sharing, pool_tokens, unit, dropped_tokens
        self._prefix_tokens = sharing.prefix_tokens // unit * unit if unit else 0
        self._free: OrderedDict[_Key, int] = OrderedDict()
        self._num_free = 0
        self._used: dict[int, int] = {}
        self._users: dict[int, int] = {}
        self._num_gone = 0
        self.extra_tokens = 0

    # ---- a sequence's way

    def find(self, cached: Cached, prompt_tokens: int, num_held: float) -> None:
        """What a sequence that may start finds of its ``prompt_tokens``."""
        if not self._unit:
            return
        self._evict(num_held)
        prefix, whole = cached.chat.prefix, self._prefix_tokens
        if self._sharing.hit_rate is not None:
            found, in_use = int(self._sharing.hit_rate * prompt_tokens + self._unit / 2), 0
        else:
            in_use = self._used.get(prefix, 0)
            found = in_use or self._free.get(("prefix", prefix), 0)
            if found >= whole:
                found += self._free.get(("chat", cached.chat.number), 0)
            found = max(found - self._dropped, 0)
        cached.found = min(found, prompt_tokens - 1) // self._unit * self._unit
        cached.revived = max(cached.found - in_use, 0)

    def take(self, cached: Cached) -> None:
        """It has a seat: what it has found is in use."""
        if self._sharing.hit_rate is None:
            self._remove(("chat", cached.chat.number))
            shared = min(cached.found, self._prefix_tokens)
            if shared:
                self._use(cached, shared)
        self.extra_tokens += cached.found - cached.shared

    def _use(self, cached: Cached, tokens: int) -> None:
        prefix = cached.chat.prefix
        if prefix not in self._used:
            self._remove(("prefix", prefix))
            self._used[prefix], self._users[prefix] = tokens, 0
            self.extra_tokens += tokens
        self._users[prefix] += 1
        cached.shared = tokens

    def computed(self, cached: Cached, num_computed: int) -> None:
        """The first that has computed a whole prefix lets others use it."""
        whole, prefix = self._prefix_tokens, cached.chat.prefix
        used = self._used.get(prefix, 0)
        if not whole or num_computed < whole or used == whole or (used and not cached.shared):
            return
        self.extra_tokens -= whole - cached.shared
        if used:
            self.extra_tokens += whole - used
            self._used[prefix] = cached.shared = whole
        else:
            self._use(cached, whole)

    def start_decoding(self, cached: Cached) -> None:
        """All of its tokens count as those of a decoding sequence now."""
        self.extra_tokens -= cached.found

    def leave(self, cached: Cached, num_tokens: int, num_held: float) -> None:
        """A sequence that decoded ends with so many tokens."""
        if self._sharing.hit_rate is None and self._unit:
            self._evict(num_held)
            self._num_gone += 1
            goes_on = cached.chat.turn + 1 < self._sharing.turns
            key = ("chat", cached.chat.number) if goes_on else ("gone", self._num_gone)
            self._let_go(key, (num_tokens - self._prefix_tokens) // self._unit * self._unit)
        self.extra_tokens += cached.shared
        self._stop_using(cached)

    def lose(self, cached: Cached, *, is_reading: bool) -> None:
        """A sequence is preempted: its own tokens are gone."""
        self.extra_tokens += cached.shared - (cached.found if is_reading else 0)
        self._stop_using(cached)
        cached.found = cached.revived = 0

    def _stop_using(self, cached: Cached) -> None:
        prefix = cached.chat.prefix
        if cached.shared and prefix in self._users:
            self._users[prefix] -= 1
            if not self._users[prefix]:
                del self._users[prefix]
                tokens = self._used.pop(prefix)
                self.extra_tokens -= tokens
                self._let_go(("prefix", prefix), tokens)
        cached.shared = 0

    # ---- what lies free

    def let_go_before(self, past: Iterable[tuple[Chat, int, bool]], num_held: float) -> None:
        """Begin with what requests left that ended before, the last first: chat, tokens, and whether it goes on.

        As many of them as the pool has room for beside ``num_held`` tokens.
        """
        if not self._unit or self._sharing.hit_rate is not None:
            return
        found: dict[_Key, int] = {}
        room = self._pool_tokens - num_held
        for chat, tokens, goes_on in past:
            self._num_gone += 1
            own = (tokens - self._prefix_tokens) // self._unit * self._unit
            of_request = {("chat", chat.number) if goes_on else ("gone", self._num_gone): own}
            if self._prefix_tokens and chat.prefix not in self._used:
                of_request = {("prefix", chat.prefix): self._prefix_tokens} | of_request
            new = {key: size for key, size in of_request.items() if key not in found}
            room -= sum(new.values())
            if room < 0:
                break
            found |= new
        for key, tokens in reversed(found.items()):
            self._let_go(key, tokens)

    def _let_go(self, key: _Key, tokens: int) -> None:
        if tokens > 0:
            self._free[key] = tokens
            self._num_free += tokens

    def _remove(self, key: _Key) -> None:
        self._num_free -= self._free.pop(key, 0)

    def _evict(self, num_held: float) -> None:
        """What lies free beyond the pool makes room, the first first, of each its end first."""
        while self._free and (over := math.ceil(self._num_free + num_held - self._pool_tokens)) > 0:
            key = next(iter(self._free))
            left = self._free[key] - over
            self._remove(key)
            if left > 0:
                self._free[key] = left
                self._free.move_to_end(key, last=False)
                self._num_free += left

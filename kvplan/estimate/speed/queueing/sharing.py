"""What prompts of a load begin with that was computed before: shared prefixes, and earlier turns of a chat.

Rules of vLLM's V1 engine, read in 0.32.0 and 0.33.0:

* Found are whole blocks from the first token on, of every prompt but its last token, which is computed always
  (vllm/v1/core/kv_cache_manager.py, get_computed_blocks). Layers of several kinds agree on a common length, a multiple
  of all their blocks (kv_cache_coordinator.py, HybridKVCacheCoordinator).
* A block that running sequences share is held once. One that nobody uses is free and found all the same, until it is
  taken for something else: the one that was let go longest ago first, of one sequence the last first
  (block_pool.py, free_blocks and get_new_blocks). Blocks of prompts that never come again are kept as long as others.

So a pool that holds fewer tokens than come back finds fewer. ``ExpectedHits`` says how many on average, by the
approximation of Che, Tung and Wang for caches that evict what was not used for longest (Hierarchical Web Caching
Systems, IEEE JSAC 20, 2002): a prefix is found where it was used within the last n requests, with the same n for all,
and n is as large as the pool allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

_PRECISION: Final = 1e-3
_BOUNDLESS: Final = 1e15


@dataclass(frozen=True, slots=True)
class PromptSharing:
    """How prompts resemble each other.

    prefix_tokens: every prompt begins with one of ``num_prefixes`` prefixes of so many tokens, whichever it happens to
    be. turns: of a chat, each of which has all earlier ones in its prompt, and comes from the same user. hit_rate:
    share of every prompt that is found whatever else happens, where that is known from a server; the rest is not used
    then.
    """

    prefix_tokens: int = 0
    num_prefixes: int = 1
    turns: int = 1
    hit_rate: float | None = None

    @property
    def finds_anything(self) -> bool:
        return bool(self.prefix_tokens) or self.turns > 1 or self.hit_rate is not None

    def prompt_tokens(self, message_tokens: float, answer_tokens: float) -> float:
        """Return the tokens of a request's prompt on average, whose message is ``message_tokens`` long."""
        earlier = (self.turns - 1) / 2
        return self.prefix_tokens + message_tokens + earlier * (message_tokens + answer_tokens)

    def longest(self, message_tokens: int, answer_tokens: int) -> int:
        """Tokens of a chat after its last answer."""
        return self.prefix_tokens + self.turns * (message_tokens + answer_tokens)


@dataclass(frozen=True, slots=True)
class ExpectedHits:
    """Tokens of a prompt that are found on average, in a pool of ``pool_tokens``.

    hit_tokens: those of which what is found is a multiple; 0 where no prefixes are cached. dropped_tokens: found, and
    computed all the same (``SchedulingRules``). message_tokens, answer_tokens: of a turn. think_seconds: between turns.
    num_groups: data-parallel ones that share the requests, with such a pool each.
    """

    sharing: PromptSharing
    pool_tokens: float
    hit_tokens: int
    message_tokens: float
    answer_tokens: float
    think_seconds: float = 0.0
    dropped_tokens: int = 0
    num_groups: int = 1

    @property
    def depends_on_latency(self) -> bool:
        """Whether it matters how many users think beside those in progress."""
        return self.sharing.turns > 1 and self.think_seconds > 0

    @property
    def least_read(self) -> float:
        """Tokens of a prompt on average that no cache has."""
        if not self.hit_tokens:
            return self.sharing.prompt_tokens(self.message_tokens, self.answer_tokens)
        if self.sharing.hit_rate is not None:
            prompt = self.sharing.prompt_tokens(self.message_tokens, self.answer_tokens)
            return max((1 - self.sharing.hit_rate) * prompt, 1.0)
        return self.message_tokens

    @property
    def could_find(self) -> float:
        """Tokens found in a pool that keeps everything."""
        return replace(self, pool_tokens=_BOUNDLESS).found(1.0, 1.0)

    def found(self, in_progress: float, e2el_seconds: float) -> float:
        """Return the tokens found by one of ``in_progress`` requests that take so long each."""
        return max(self._found(in_progress / self.num_groups, e2el_seconds), 0.0)

    def _found(self, in_progress: float, e2el_seconds: float) -> float:
        """Return the tokens found in one group."""
        sharing = self.sharing
        if not self.hit_tokens or not sharing.finds_anything:
            return 0.0
        prompt = sharing.prompt_tokens(self.message_tokens, self.answer_tokens)
        if sharing.hit_rate is not None:
            return min(sharing.hit_rate * prompt, prompt - 1)
        away = in_progress * self.think_seconds / e2el_seconds if self.depends_on_latency else 0.0
        ago = self._requests_ago(in_progress, away)
        of_prefix = self._prefix_share(ago, in_progress) * max(self._prefix_tokens - self.dropped_tokens, 0)
        # The next turn goes to the group with the fewest in flight, whichever has the others (DPLBAsyncMPClient).
        goes_on = self._chat_share(ago, away) / self.num_groups
        found = of_prefix
        for number in range(1, sharing.turns):
            earlier = sharing.prefix_tokens + number * self._turn - 1
            of_chat = max(earlier - (self.hit_tokens - 1) / 2 - self.dropped_tokens, 0.0)  # ends anywhere in a block
            found += goes_on * of_chat + (1 - goes_on) * of_prefix
        return min(found / sharing.turns, prompt - 1)

    @property
    def _turn(self) -> float:
        """Tokens of a message and its answer."""
        return self.message_tokens + self.answer_tokens

    @property
    def _prefix_tokens(self) -> int:
        return self.sharing.prefix_tokens // self.hit_tokens * self.hit_tokens

    def _prefix_share(self, ago: float, in_progress: float) -> float:
        """Return the share of prefixes in use or used within the last ``ago`` requests."""
        return 1 - math.exp(-(ago + in_progress) / self.sharing.num_prefixes)

    @staticmethod
    def _chat_share(ago: float, away: float) -> float:
        """Return the share of users whose chats go on who come back before ``ago`` requests have ended."""
        return 1.0 if away <= 0 else 1 - math.exp(-ago / away)

    def _requests_ago(self, in_progress: float, away: float) -> float:
        """How many requests ago something was used that is just being evicted."""
        low, high = 0.0, self.pool_tokens / self._turn
        while high - low > max(_PRECISION * high, _PRECISION):
            middle = (low + high) / 2
            if self._held(middle, in_progress, away) <= self.pool_tokens:
                low = middle
            else:
                high = middle
        return low

    def _held(self, ago: float, in_progress: float, away: float) -> float:
        """Tokens in the pool where all is kept that was used within the last ``ago`` requests: of those that run, of
        prefixes, of chats that go on, and of what nobody will ask for again. A chat leaves all its turns at its end."""
        sharing = self.sharing
        prompt = sharing.prompt_tokens(self.message_tokens, self.answer_tokens)
        running = in_progress * (prompt - sharing.prefix_tokens + self.answer_tokens / 2)
        prefixes = sharing.num_prefixes * self._prefix_share(ago, in_progress) * self._prefix_tokens
        between = away * (sharing.turns - 1) / sharing.turns  # users who come back to a chat, half of it on average
        going_on = between * self._chat_share(ago, away) * self._turn * sharing.turns / 2
        return running + prefixes + going_on + ago * self._turn

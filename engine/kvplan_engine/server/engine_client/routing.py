"""Which engine answers a request, where several hold the same model.

What an engine has to do already is weighed against what it probably has in its prefix cache.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvplan_engine.server.messages import PoolFacts

# What an engine has to do already, in the terms in which the router compares engines.


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """num_sequences: in flight, of which ``num_queued_sequences`` no step has scheduled yet. queued_tokens: what those
    have to compute, as far as their prompts are not cached. num_seats: sequences that a step takes. free_tokens: slots
    of free blocks, after the last step.
    """

    num_sequences: int
    num_queued_sequences: int
    queued_tokens: int
    num_seats: int
    free_tokens: int

    def has_room(self, num_sequences: int, num_tokens: int) -> bool:
        """Whether ``num_sequences`` more, of ``num_tokens`` to compute, can run beside all that are here."""
        return (
            self.num_sequences + num_sequences <= self.num_seats and self.queued_tokens + num_tokens <= self.free_tokens
        )


# Which prefixes an engine probably has in its cache: digests of the blocks that it was sent, the latest ones.
#
# Blocks are chained as in the engine's prefix cache: the digest of a block says all tokens up to its end. Evictions are
# not reported. An engine evicts what was used longest ago, and so does this memory, which holds as many blocks as the
# engine keeps. What it says is therefore a guess: a wrong one costs the time to compute a prefix again, never a token.


_DIGEST_BYTES = 8  # one wrong guess among 2**32 blocks


@dataclass(frozen=True, slots=True)
class PrefixChain:
    """The digests of a sequence's full blocks, and its tokens behind them."""

    block_size: int
    root: bytes
    digests: tuple[bytes, ...] = ()
    rest: tuple[int, ...] = ()

    def extended(self, token_ids: Sequence[int]) -> PrefixChain:
        """With ``token_ids`` behind it."""
        tokens = [*self.rest, *token_ids]
        num_full = len(tokens) // self.block_size * self.block_size
        packed = array("i", tokens[:num_full]).tobytes()
        width = self.block_size * array("i").itemsize
        tail = self.digests[-1] if self.digests else self.root
        digests = list(self.digests)
        for start in range(0, len(packed), width):
            tail = hashlib.blake2b(tail + packed[start : start + width], digest_size=_DIGEST_BYTES).digest()
            digests.append(tail)
        return replace(self, digests=tuple(digests), rest=tuple(tokens[num_full:]))


def prefix_chain(token_ids: Sequence[int], block_size: int, salt: str = "") -> PrefixChain:
    """Chain of ``token_ids``. salt: what their KV depends on beside them, such as the adapter that computes it."""
    root = hashlib.blake2b(salt.encode(), digest_size=_DIGEST_BYTES).digest()
    return PrefixChain(block_size, root).extended(token_ids)


class PrefixMemory:
    """The ``capacity`` blocks that one engine was sent last."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._digests: OrderedDict[bytes, None] = OrderedDict()  # what was used longest ago comes first

    def __len__(self) -> int:
        return len(self._digests)

    def num_matched(self, digests: Sequence[bytes]) -> int:
        """How many of ``digests``, from the first on, are remembered."""
        known = self._digests
        return next((number for number, digest in enumerate(digests) if digest not in known), len(digests))

    def remember(self, digests: Sequence[bytes]) -> None:
        """They were used now. Of one sequence the last block is forgotten first: no other needs it."""
        known = self._digests
        for digest in reversed(digests):
            known[digest] = None
            known.move_to_end(digest)
        while len(known) > self._capacity:
            known.popitem(last=False)

    def clear(self) -> None:
        self._digests.clear()


# Chooses the engine for a request: where its prompt's prefix probably is, unless that engine has too much to do.
#
# Costs are compared in tokens of prompt to compute:
#
#     2 x (tokens of the prompt that the engine would compute)         they take time, and room in its prefix cache
#     + tokens that wait there to be computed before them
#     + 32 x (sequences in flight there + 3 x those that would wait)   with this request, if it cannot run at once
#
# The last line is vLLM's measure of load, 4 x waiting + running (DPLBAsyncMPClient in vllm/v1/engine/core_client.py),
# with 32 tokens for each running sequence. vLLM knows nothing of prefixes there. SGLang's router (cache_aware) follows
# a prefix until the numbers of requests differ by more than balance_abs_threshold, at first 32 and later 64, however
# long the prefix is. Here what it is worth grows with its length: n tokens are followed until the engine has n / 16
# running sequences more than the least loaded one. So 1,024 tokens are followed as far as with SGLang's 64.


COMPUTED_WEIGHT = 2
SEQUENCE_TOKENS = 32
WAITING_WEIGHT = 4


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes. num_new_tokens: of its prompt, those that the engine probably has to compute.

    chain: its prompt's, where prefixes are looked at.
    """

    engine: int = 0
    num_new_tokens: int = 0
    chain: PrefixChain | None = None


ONLY_ROUTE = Route()
"""Where there is one engine."""


class Router:
    """Knows what ``num_engines`` engines were sent. Their pools have to be told before a request is routed."""

    def __init__(self, num_engines: int) -> None:
        self._memories = [PrefixMemory(0) for _ in range(num_engines)]
        self._block_size = 0  # where prefixes are not cached

    def use_pool(self, engine: int, pool: PoolFacts) -> None:
        """``engine`` has carved its memory: its cache is empty."""
        config = pool.config
        caches_prefixes = config["enable_prefix_caching"] and config["kv_reservation"] == "paged"
        self._block_size = pool.block_size if caches_prefixes else 0
        num_tier_blocks = (config["kv_host_cache_bytes"] + config["kv_disk_cache_bytes"]) // pool.block_bytes
        self._memories[engine] = PrefixMemory(pool.num_blocks + num_tier_blocks)

    def forget(self, engine: int) -> None:
        """The cache of ``engine`` was emptied."""
        self._memories[engine].clear()

    def route(
        self,
        prompt_token_ids: Sequence[int],
        num_sequences: int,
        loads: Mapping[int, EngineLoad],
        salt: str = "",
    ) -> Route:
        """The engine, of those in ``loads``, for a request of ``num_sequences`` samples: it counts as sent there.

        salt: what the KV depends on beside the tokens. At equal cost the least loaded engine is taken, then the one
        that was sent the fewest blocks.
        """
        num_tokens = len(prompt_token_ids)
        chain = prefix_chain(prompt_token_ids, self._block_size, salt) if self._block_size else None
        new_tokens = {engine: self._num_new_tokens(engine, num_tokens, chain) for engine in loads}
        engine = min(
            loads,
            key=lambda each: (
                cost(new_tokens[each], num_sequences, loads[each]),
                loads[each].num_sequences,
                len(self._memories[each]),
            ),
        )
        if chain is not None:
            self._memories[engine].remember(chain.digests)
        return Route(engine, new_tokens[engine], chain)

    def _num_new_tokens(self, engine: int, num_tokens: int, chain: PrefixChain | None) -> int:
        """Return how many tokens of a prompt ``engine`` probably has to compute: one at least."""
        if chain is None:
            return num_tokens
        usable = chain.digests[: (num_tokens - 1) // chain.block_size]
        return num_tokens - chain.block_size * self._memories[engine].num_matched(usable)

    def answered(self, route: Route, token_ids: Sequence[int]) -> None:
        """An answer to the prompt of ``route`` is complete: a next turn will begin with both."""
        if route.chain is not None and route.chain.block_size == self._block_size:
            self._memories[route.engine].remember(route.chain.extended(token_ids).digests)


def cost(num_new_tokens: int, num_sequences: int, load: EngineLoad) -> int:
    """Cost of sending an engine with ``load`` a request of ``num_sequences`` samples, ``num_new_tokens`` to compute."""
    num_waiting = 0 if load.has_room(num_sequences, num_new_tokens) else load.num_queued_sequences + num_sequences
    sequences = load.num_sequences + (WAITING_WEIGHT - 1) * num_waiting
    return COMPUTED_WEIGHT * num_new_tokens + load.queued_tokens + SEQUENCE_TOKENS * sequences

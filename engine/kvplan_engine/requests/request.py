"""A request and its sequences: what the user asked for, and the token streams that answer it. No torch."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from kvplan_engine.blocks.block_pool import BlockHash
from kvplan_engine.blocks.block_table import BlockTable
from kvplan_engine.blocks.transfers import SwappedGroup
from kvplan_engine.errors import EngineError
from kvplan_engine.requests.beams import BeamGroup
from kvplan_engine.requests.detokenizer import Detokenizer
from kvplan_engine.requests.drafts import NgramIndex
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.requests.status import FinishReason, SequenceStatus

# Log-probabilities of a prompt's own tokens, gathered chunk by chunk as the prompt is computed. No torch.


class PromptTokenLogprob(NamedTuple):
    """What the tokens before it said of a token of the prompt.

    rank: how many tokens of the vocabulary are as likely as it, itself included: 1 for the likeliest. top: the
    likeliest tokens and their natural log-probabilities, best first.
    """

    logprob: float
    rank: int
    top: dict[int, float]


class PromptLogprobs:
    """Log-probabilities of a prompt of ``num_prompt_tokens``, with ``num_top`` alternatives each.

    tokens[i] is for the prompt's token i + 1: nothing comes before the first one. They are kept through preemptions, so
    that what is computed again is not asked again.
    """

    def __init__(self, num_prompt_tokens: int, num_top: int) -> None:
        self.num_top = num_top
        self.tokens: list[PromptTokenLogprob] = []
        self._number = num_prompt_tokens - 1

    @property
    def is_complete(self) -> bool:
        return len(self.tokens) >= self._number

    def missing(self, first: int, number: int) -> range:
        """Positions from ``first`` to ``first + number`` - 1 whose next token is one still to be gathered."""
        return range(max(first, len(self.tokens)), min(first + number, self._number))

    def by_token(self, prompt_token_ids: list[int]) -> list[dict[int, float] | None]:
        """Return, as vLLM does, None for the first token; for others its log-probability and its alternatives'."""
        own = zip(prompt_token_ids[1:], self.tokens, strict=False)
        return [None, *({token: each.logprob} | each.top for token, each in own)]


# How often each token occurs in a sequence: what penalties are computed from. No torch.


class TokenCounts:
    """The tokens of a sequence's prompt, and how often each token occurs in its answer; extended as tokens arrive.

    Kept with the sequence, so that the cost of a step depends on the number of distinct tokens, not on the length.
    """

    __slots__ = ("_num_counted", "in_prompt", "of_output")

    def __init__(self, prompt_token_ids: list[int]) -> None:
        self.in_prompt = set(prompt_token_ids)
        self.of_output: dict[int, int] = {}
        self._num_counted = len(prompt_token_ids)

    def extend(self, token_ids: list[int]) -> None:
        """Count the tokens of ``token_ids`` (prompt and answer) that are new since the last call."""
        for token in token_ids[self._num_counted :]:
            self.of_output[token] = self.of_output.get(token, 0) + 1
        self._num_counted = len(token_ids)


# Which adapter a request wants, and what the scheduler needs to know of one. No torch.


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """name: what users call the adapter. path: the directory that PEFT's ``save_pretrained`` wrote."""

    name: str
    path: str

    def __post_init__(self) -> None:
        for what, value in (("name", self.name), ("path", self.path)):
            if not isinstance(value, str):
                raise EngineError(f"the {what} of an adapter must be a text, got {type(value).__name__}.")


@dataclass(frozen=True, slots=True)
class AdapterKey:
    """One adapter's content. digest: of its files, so that an adapter of the same name is still another one."""

    name: str
    digest: bytes


class Request:
    """One prompt with its sampling parameters; ``params.n`` sequences answer it.

    cache_salt: only requests with the same one share cached prefixes.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        adapter: AdapterKey | None = None,
        cache_salt: str | None = None,
    ) -> None:
        self.request_id = request_id
        self.adapter = adapter
        self.cache_salt = _kv_salt(adapter, cache_salt)
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        self.arrival_seconds = time.perf_counter()
        self.first_scheduled_seconds: float | None = None  # when it left the waiting queue for the first time
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.stop_ids: frozenset[int] = frozenset()  # the tokens that end it
        self.prompt_logprobs: PromptLogprobs | None = None
        if params.prompt_logprobs is not None:
            self.prompt_logprobs = PromptLogprobs(len(prompt_token_ids), params.prompt_logprobs)
        self.needs_token_details = params.logprobs is not None or self.prompt_logprobs is not None
        self.has_stop_strings = bool(params.stop_strings)
        self.sequences: list[Sequence] = []
        self.beams: BeamGroup[Sequence] | None = None  # the sequences are beams of a search

    @property
    def is_plainly_greedy(self) -> bool:
        """Whether its tokens are simply the likeliest ones, and nothing else is requested."""
        params = self.params
        is_plain = self.beams is None and params.logprobs is None and not params.changes_logits
        return is_plain and params.is_greedy and not params.min_tokens

    @property
    def needs_values(self) -> bool:
        """Whether its next step cannot be decided before the tokens of the last one are known."""
        return self.beams is not None

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Whether every token of its prompt has to be computed, to see what is said of the next one."""
        return self.prompt_logprobs is not None and not self.prompt_logprobs.is_complete

    @property
    def num_pending_forks(self) -> int:
        """Samples that do not run yet, because the prompt they share is still being computed."""
        return 0 if self.beams is not None else self.params.n - len(self.sequences)

    @property
    def is_finished(self) -> bool:
        """Whether no more tokens will come: nothing forks from a finished sequence either."""
        return all(sequence.status is SequenceStatus.FINISHED for sequence in self.sequences)


def _kv_salt(adapter: AdapterKey | None, cache_salt: str | None) -> bytes:
    """What KV is told apart by besides its tokens: the adapter that computed it, and whose it is."""
    content = b"" if adapter is None else adapter.digest
    return content if cache_salt is None else content + b"salt" + hashlib.sha256(cache_salt.encode()).digest()


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledSequence:
    """A part of a step: ``num_new_tokens`` tokens of ``sequence`` are computed, from its ``num_computed_tokens`` on.

    needs_sampling: the step reaches the sequence's last token, so its successor can be chosen. num_drafts: of the
    tokens, how many are drafts behind that.
    """

    sequence: Sequence
    num_new_tokens: int
    needs_sampling: bool
    num_drafts: int = 0


_sequence_numbers = count()


def number_sequences_from(first: int) -> None:
    """What this process begins from now on has numbers that engines beside it do not give: see ``Sampler``."""
    global _sequence_numbers
    _sequence_numbers = count(first)


class StepClock:
    """Counts steps for the sequences that follow it: each tick is one more token and one more computed token.

    token_seconds: when those sequences last got a token.
    """

    __slots__ = ("ticks", "token_seconds")

    def __init__(self) -> None:
        self.ticks = 0
        self.token_seconds = 0.0


STOPPED_CLOCK = StepClock()  # never ticks


class Sequence:
    """One token stream: prompt + generated tokens, and how far their KV is computed.

        token_ids          p p p p p p p p g g g      (p: prompt, g: generated)
        num_computed_tokens                    ^ 10   KV of the first 10 is in the pool; the last token has none yet,
                                                      its KV is written in the step that predicts its successor
    There is no prefill and no decode phase: a step computes the next ``num_tokens - num_computed_tokens`` tokens, or
    as many of them as the token budget allows.

    ``token_ids`` are the tokens whose values are known; ``num_tokens`` also counts those on their way, which a step
    that has already started will choose. What a step computes follows from counts, not values. A decoding sequence
    follows a clock: each tick adds one to both counts.

    draft_token_ids: what the next step computes behind the last token; they are the sequence's once they are accepted.
    """

    __slots__ = (
        "_clock",
        "_num_computed",
        "_num_tokens",
        "block_hashes",
        "cumulative_logprob",
        "detokenizer",
        "draft_token_ids",
        "finish_reason",
        "has_shared_tail",
        "high_water_tokens",
        "index",
        "last_token_seconds",
        "logprobs",
        "max_num_tokens",
        "ngrams",
        "num_prompt_tokens",
        "num_registered_blocks",
        "number",
        "request",
        "row",
        "status",
        "stop_match",
        "swapped",
        "table",
        "token_counts",
        "token_ids",
    )

    def __init__(self, request: Request, index: int, token_ids: list[int], table: BlockTable) -> None:
        self.number = next(_sequence_numbers)
        self.request = request
        self.index = index
        self.token_ids = token_ids
        self._clock = STOPPED_CLOCK
        self._num_tokens = len(token_ids)  # this and the next: when the clock stood at 0
        self._num_computed = 0
        self.row = -1  # among the decoding sequences; -1 if it is not one of them
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.max_num_tokens = sys.maxsize  # the length at which it ends
        self.table = table
        self.has_shared_tail = False
        self.draft_token_ids: Rows[int] = ()
        self.block_hashes: list[BlockHash] = []
        self.num_registered_blocks = 0
        self.last_token_seconds: float | None = None  # None: no token since it last started or resumed
        self.swapped: list[SwappedGroup] = []  # where its KV is in host memory while it is swapped out
        self.high_water_tokens = 0  # computed before a preemption: up to here it is recomputation
        self.status = SequenceStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_match: str | int | None = None  # the stop string or the stop token it ended with
        # created when needed, from the tokens alone, so a fork creates its own
        self.detokenizer: Detokenizer | None = None
        self.token_counts: TokenCounts | None = None
        self.ngrams: NgramIndex | None = None
        self.cumulative_logprob = 0.0
        self.logprobs: list[dict[int, float]] = []

    @property
    def num_tokens(self) -> int:
        return self._num_tokens + self._clock.ticks

    @num_tokens.setter
    def num_tokens(self, number: int) -> None:
        self._num_tokens = number - self._clock.ticks

    @property
    def num_computed_tokens(self) -> int:
        return self._num_computed + self._clock.ticks

    @num_computed_tokens.setter
    def num_computed_tokens(self, number: int) -> None:
        self._num_computed = number - self._clock.ticks

    def follow(self, clock: StepClock) -> None:
        """Let ``clock`` advance the counts from now on."""
        passed = self._clock.ticks - clock.ticks
        self._clock = clock
        self._num_tokens += passed
        self._num_computed += passed

    @property
    def num_pending_tokens(self) -> int:
        """Tokens that a started step will choose: counted, but with values not known yet."""
        return self.num_tokens - len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens whose values are known."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_drawn_tokens(self) -> int:
        """Generated tokens before the one that is being chosen, the first where it has drafts; known or not."""
        num_chosen = 1 + len(self.draft_token_ids) if self.num_pending_tokens else 0
        return self.num_tokens - self.num_prompt_tokens - num_chosen

    def append_token(self, token_id: int) -> None:
        """Append a token that no step has counted: a search chooses how its beams continue."""
        self.token_ids.append(token_id)
        self.num_tokens += 1

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def fork(self, index: int) -> Sequence:
        """A sibling with the same tokens and references to the same blocks."""
        child = Sequence(self.request, index, list(self.token_ids), self.table.fork())
        child.num_tokens = self.num_tokens
        child.max_num_tokens = self.max_num_tokens
        child.num_computed_tokens = self.num_computed_tokens
        child.block_hashes = list(self.block_hashes)
        child.num_registered_blocks = self.num_registered_blocks
        child.high_water_tokens = self.high_water_tokens
        child.status = self.status
        child.cumulative_logprob = self.cumulative_logprob
        child.logprobs = list(self.logprobs)
        self.has_shared_tail = child.has_shared_tail = True
        return child

"""A request and its sequences: what the user asked for, and the token streams that answer it. No torch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING

from kvplan_engine.sampling.params import SamplingParams

if TYPE_CHECKING:
    from kvplan_engine.beam_search import BeamGroup
    from kvplan_engine.block_pool import BlockHash
    from kvplan_engine.block_table import BlockTable
    from kvplan_engine.sampling.detokenizer import Detokenizer
    from kvplan_engine.sampling.token_counts import TokenCounts


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"  # preempted, its KV in host memory
    PARKED = "parked"  # a beam without blocks and with nothing to compute, until its siblings have caught up
    FINISHED = "finished"


class FinishReason(str, Enum):
    STOP = "stop"  # the end-of-sequence token, a stop token or a stop string
    LENGTH = "length"  # max_tokens or max_model_len
    ABORT = "abort"


class Request:
    """One prompt with its sampling parameters; ``params.n`` sequences answer it."""

    def __init__(
        self, request_id: str, prompt_token_ids: list[int], params: SamplingParams, *, prompt: str | None = None
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.params = params
        self.arrival_seconds = time.perf_counter()
        self.num_cached_tokens = 0
        self.stop_ids: frozenset[int] = frozenset()  # the tokens that end it
        self.sequences: list[Sequence] = []
        self.beams: BeamGroup | None = None  # the sequences are beams of a search

    @property
    def num_pending_forks(self) -> int:
        """Samples that do not run yet because the prompt they share is still being computed."""
        return 0 if self.beams is not None else self.params.n - len(self.sequences)

    @property
    def is_finished(self) -> bool:
        return self.num_pending_forks == 0 and all(s.status is SequenceStatus.FINISHED for s in self.sequences)


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledSequence:
    """``num_new_tokens`` tokens of ``sequence`` from its ``num_computed_tokens`` on are computed in a step.

    needs_sampling: the step reaches the sequence's last known token, so that its successor can be chosen.
    """

    sequence: Sequence
    num_new_tokens: int
    needs_sampling: bool


_sequence_numbers = count()


class Sequence:
    """One token stream: prompt + generated tokens, and how far their KV is computed.

        token_ids          p p p p p p p p g g g      (p: prompt, g: generated)
        num_computed_tokens                    ^ 10   KV of the first 10 is in the pool; the last token has none yet,
                                                      its KV is written in the step that predicts its successor
    There is no prefill and no decode phase: a step computes the next ``len(token_ids) - num_computed_tokens`` tokens,
    or as many of them as the token budget leaves.
    """

    __slots__ = (
        "block_hashes",
        "cumulative_logprob",
        "decode_item",
        "detokenizer",
        "finish_reason",
        "free_until",
        "has_shared_tail",
        "high_water_tokens",
        "index",
        "last_token_seconds",
        "logprobs",
        "num_computed_tokens",
        "num_prompt_tokens",
        "num_registered_blocks",
        "number",
        "plain_until",
        "request",
        "status",
        "stop_match",
        "swap_slots",
        "table",
        "token_counts",
        "token_ids",
    )

    def __init__(self, request: Request, index: int, token_ids: list[int], table: BlockTable) -> None:
        self.number = next(_sequence_numbers)
        self.request = request
        self.index = index
        self.token_ids = token_ids
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.num_computed_tokens = 0
        self.table = table
        self.has_shared_tail = False
        self.block_hashes: list[BlockHash] = []
        self.num_registered_blocks = 0
        self.last_token_seconds: float | None = None  # since it last started or resumed to run
        self.free_until = 0  # tokens it may write without asking for a block
        self.plain_until = 0  # length below which only one of the request's stop tokens ends it
        self.swap_slots: list[int] = []  # where its KV is while it is swapped out
        self.decode_item = ScheduledSequence(self, 1, True)
        self.high_water_tokens = 0  # what was computed before a preemption: computing it again is recomputation
        self.status = SequenceStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_match: str | int | None = None  # the stop string or the stop token it ended with
        # made by whoever needs them, from the tokens alone; a fork makes its own
        self.detokenizer: Detokenizer | None = None
        self.token_counts: TokenCounts | None = None
        self.cumulative_logprob = 0.0
        self.logprobs: list[dict[int, float]] = []

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    def fork(self, index: int) -> Sequence:
        """A sibling with the same tokens and, by reference, the same blocks."""
        child = Sequence(self.request, index, list(self.token_ids), self.table.fork())
        child.num_computed_tokens = self.num_computed_tokens
        child.block_hashes = list(self.block_hashes)
        child.num_registered_blocks = self.num_registered_blocks
        child.high_water_tokens = self.high_water_tokens
        child.status = self.status
        child.cumulative_logprob = self.cumulative_logprob
        child.logprobs = list(self.logprobs)
        self.has_shared_tail = child.has_shared_tail = True
        self.free_until = child.free_until = 0
        return child

"""Steps without a model: every sequence gets a random token, so that scheduling and memory go on as they would.

A token is a function of a seed, a stream and its position in the sequence, so that a preempted or re-batched sequence
goes on with the same ones:

    greedy                 the engine's seed, one stream: equal prompts get equal answers, as they would
    random with a seed     the request's seed, a stream for each of its samples
    random without one     the engine's seed, a stream for each sequence

Tokens that would end a sequence are never drawn: how long answers are follows from ``max_tokens`` alone.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain, islice

import numpy as np

from kvplan_engine.offload.disk_tier import DiskTier
from kvplan_engine.offload.mover import CountedMover
from kvplan_engine.requests.request import Sequence
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.sampling.sampler import SampledToken, SampledTokens, accepted_tokens

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_SEED_STEP, _STREAM_STEP = 0xD1342543DE82EF95, 0xA0761D6478BD642F  # odd, so that equal products mean equal factors
_MASK = (1 << 64) - 1


class CapacityRunner:
    """Takes the place of ModelRunner: same calls, no tensors. seed: the engine's."""

    num_graph_replays = 0
    counts_tokens = False

    def __init__(self, vocab_size: int, seed: int) -> None:
        self.chooser = self
        self._vocab_size = vocab_size
        self._seed = seed
        self.first_drafts: dict[int, int] = {}

    def touch(self, num_blocks: int) -> None:
        """Blocks have no memory."""

    def make_mover(self, num_host_slots: int, disk: DiskTier | None) -> CountedMover:
        """Blocks and slots have no content."""
        assert disk is None, "EngineConfig refuses a disk tier"
        return CountedMover()

    def prepare(self, plan: StepPlan, latest: np.ndarray | None = None, before: StepPlan | None = None) -> StepPlan:
        """A step has no inputs but its plan."""
        return plan

    def forward(self, plan: StepPlan) -> StepPlan:
        """There is nothing to compute."""
        return plan

    def sample_step(self, _: StepPlan, plan: StepPlan) -> SampledTokens:
        """A random token for each of ``plan.sampled``."""
        if not plan.sampled:
            return SampledTokens([], np.empty(0, dtype=np.int64))
        if plan.num_draft_tokens:
            return self._verify(plan)
        if plan.is_plainly_greedy:
            origins = np.full(len(plan.sampled), origin(self._seed, 0), dtype=np.uint64)
        else:
            origins = np.array([self._origin(sequence) for sequence in plan.sampled], dtype=np.uint64)
        positions = np.array([sequence.num_tokens for sequence in plan.sampled], dtype=np.uint64)
        tokens = self._draw(origins, positions, plan)
        return SampledTokens(tokens.tolist(), tokens)

    def _verify(self, plan: StepPlan) -> SampledTokens:
        """The same behind every draft as well."""
        counts = [1 + len(sequence.draft_token_ids) for sequence in plan.sampled]
        origins = np.repeat(np.array([self._origin(sequence) for sequence in plan.sampled], np.uint64), counts)
        ends = (
            range(each.num_tokens + 1 - n, each.num_tokens + 1) for each, n in zip(plan.sampled, counts, strict=True)
        )
        positions = np.fromiter(chain.from_iterable(ends), np.uint64, sum(counts))
        tokens = map(SampledToken, self._draw(origins, positions, plan).tolist())
        return accepted_tokens(plan.sampled, [list(islice(tokens, count)) for count in counts])

    def _draw(self, origins: np.ndarray, positions: np.ndarray, plan: StepPlan) -> np.ndarray:
        tokens = random_tokens(origins, positions, self._vocab_size)
        if plan.stop_ids:
            _avoid(tokens, plan.stop_ids, self._vocab_size)
        return tokens

    def follow(self, plan: StepPlan, sampled: SampledTokens) -> None:
        """There are no hidden states."""

    def take_prompt_logprobs(self, plan: StepPlan) -> None:
        """Nothing was computed that could say something of a prompt."""

    def can_choose_ahead(self, plan: StepPlan) -> bool:
        """Answer as the CPU does."""
        return plan.is_plainly_greedy and not plan.needs_token_details

    def choose_ahead(self, _: StepPlan, plan: StepPlan) -> _Ready:
        """The same for steps that run ahead of their tokens."""
        return _Ready(self.sample_step(plan, plan))

    def _origin(self, sequence: Sequence) -> int:
        params = sequence.request.params
        if params.is_greedy:
            return origin(self._seed, 0)
        if params.seed is not None:
            return origin(params.seed, 1 + 2 * sequence.index)
        return origin(self._seed, 2 + 2 * sequence.number)


class _Ready:
    """Tokens that need not be waited for."""

    def __init__(self, tokens: SampledTokens) -> None:
        self._tokens = tokens

    def wait(self) -> SampledTokens:
        return self._tokens


def origin(seed: int, stream: int) -> int:
    """Where a stream of random numbers begins, 64 bits."""
    return (seed * _SEED_STEP + stream * _STREAM_STEP) & _MASK


def random_tokens(origins: np.ndarray, positions: np.ndarray, vocab_size: int) -> np.ndarray:
    """A token for each pair of ``origins`` and ``positions`` [n] uint64, by SplitMix64 (Steele et al., 2014)."""
    bits = origins + positions * _GOLDEN
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        bits = (bits ^ (bits >> shift)) * multiplier
    bits ^= bits >> _SHIFTS[-1]
    return (bits % np.uint64(vocab_size)).astype(np.int64)


def _avoid(tokens: np.ndarray, excluded: Collection[int], vocab_size: int) -> None:
    """Replace each of ``excluded`` by the next token that is not; in a vocabulary of nothing else they stay."""
    numbers = np.fromiter(excluded, np.int64)
    for _ in range(min(len(numbers), vocab_size - 1)):
        is_bad = np.isin(tokens, numbers)
        if not is_bad.any():
            return
        tokens[is_bad] = (tokens[is_bad] + 1) % vocab_size

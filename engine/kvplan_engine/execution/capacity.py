"""An engine without tensors (``load_format="none"``): the memory divided as it would be, and steps of random tokens."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from itertools import chain, islice
from typing import NoReturn

import numpy as np

from kvplan_engine.config import EngineConfig
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.device.device import CountedDevice
from kvplan_engine.errors import EngineError
from kvplan_engine.execution.carving import Carving
from kvplan_engine.memory.plan import Needs, Reserve, kv_layout, plan_ranks, resolve_max_model_len
from kvplan_engine.memory.step_buffers import cuda_buffers, draft_buffers, step_buffers
from kvplan_engine.models.counted_model import CountedModel
from kvplan_engine.offload.disk_tier import DiskTier
from kvplan_engine.offload.mover import CountedMover
from kvplan_engine.requests.request import Sequence
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.sampling.sampler import SampledToken, SampledTokens, accepted_tokens

# Capacity without tensors (``load_format="none"``): the memory is divided as it would be, and nothing is allocated.
#
# Everything that decides who runs when is the real one: scheduler, block pool, prefix cache, swap space, host tier,
# preemption, and how sequences end. Weights, workspace and KV pool are bytes in an account: those that the engine would
# allocate for these settings. There is no profile step: overhead is the device's constant, and a GPU's graphs, which
# only a start can measure, are not counted. Nor is the room in which a GPU widens weights in few bits: a config does
# not say which those are.
#
# ``rank_accounts`` gives all of this instead, as another engine would take it; what is left is divided by the same
# rules.


# Without a measured step, recomputing costs more than any copy: what there is room for is swapped and cached.
_UNKNOWN_SECONDS_PER_TOKEN = math.inf
_WITH_TENSORS = "use load_format 'dummy', or real weights"


def refuse_what_needs_logits(params: SamplingParams) -> None:
    """EngineError for log-probabilities and stop strings: random tokens have no probability, and mean no text."""
    asked = "log-probabilities" if params.logprobs is not None else "stop strings" if params.stop_strings else None
    if asked is not None:
        raise EngineError(f"load_format 'none' draws random tokens, so it has no {asked}.", hint=_WITH_TENSORS)


def refuse_beams() -> NoReturn:
    """EngineError: a search follows probabilities."""
    raise EngineError("load_format 'none' draws random tokens, so no beam is better.", hint=_WITH_TENSORS)


class CapacityCarver:
    """Divides the memory that the weights of ``model`` would leave, any number of times."""

    def __init__(self, model: CountedModel, device: CountedDevice) -> None:
        self._model = model
        self._device = device

    def settle(self, config: EngineConfig) -> Reserve:
        """See MemoryCarver.settle: nothing is measured."""
        return Reserve(self._device.total_bytes, self._device.overhead_bytes, 0)

    def carve(self, config: EngineConfig) -> Carving:
        """See MemoryCarver.carve: the same errors, nothing allocated."""
        model = self._model
        max_model_len = resolve_max_model_len(config, model.config)
        if config.drafts_with_model and model.drafter is None:
            raise EngineError("the engine was started without this drafter.", hint="start a new one")
        drafter = model.drafter if config.drafts_with_model else None
        layout = kv_layout(config, model.config, model.dtype, max_model_len, drafter)
        stages = [(model.config, model.weight_bytes), *model.other_stages]
        needs = [self._needs(config, *stage, max_model_len, drafter) for stage in stages]
        if config.rank_accounts is not None:
            needs = [
                replace(each, workspace_bytes=account.activation_bytes, overhead_bytes=account.overhead_bytes)
                for each, account in zip(needs, config.rank_accounts, strict=True)
            ]
        total = self._device.total_bytes
        memory = plan_ranks(config, layout, max_model_len, needs, device_total_bytes=total)
        runner = CapacityRunner(model.config.vocab_size, config.seed)
        return Carving(runner, memory, layout, max_model_len, _UNKNOWN_SECONDS_PER_TOKEN)

    def _needs(
        self,
        config: EngineConfig,
        part: ModelDescription,
        weight_bytes: int,
        max_model_len: int,
        drafter: ModelDescription | None,
    ) -> Needs:
        dtype = self._model.dtype
        layout = kv_layout(config, part, dtype, max_model_len, drafter)
        of_kernels = cuda_buffers(config, part, holds_few_bits=False) if self._device.kind == "cuda" else []
        buffers = step_buffers(part, dtype, config, layout, max_model_len, of_kernels=of_kernels)
        if drafter is not None:
            buffers += draft_buffers(drafter, dtype, config, layout, max_model_len)
        workspace_bytes = sum(buffer.num_bytes for buffer in buffers)
        return Needs(weight_bytes, workspace_bytes, self._device.overhead_bytes, layout.block_bytes)


# Steps without a model: every sequence gets a random token, so that scheduling and memory go on as they would.
#
# A token is a function of a seed, a stream and its position in the sequence, so that a preempted or re-batched sequence
# goes on with the same ones:
#
#     greedy                 the engine's seed, one stream: equal prompts get equal answers, as they would
#     random with a seed     the request's seed, a stream for each of its samples
#     random without one     the engine's seed, a stream for each sequence
#
# Tokens that would end a sequence are never drawn: how long answers are follows from ``max_tokens`` alone.


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

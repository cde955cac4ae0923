"""A storm over a whole engine: requests with up to four samples, small budgets and pools, aborts at random moments.

Every request that was added ends: the ones that nobody stopped with all of their samples, with the tokens that a plain
engine answers each of them alone in the same order.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from engine_answers import shrink_pool, small_llm
from multi_token_models import MultiTokenCheckpoint
from small_models import VOCAB_SIZE, Checkpoint

from kvplan_engine import LLM, SamplingParams
from kvplan_engine.requests.request import Request

_MAX_MODEL_LEN = 96
_POOL_TOKENS = 112
_MOST_BESIDE = 12
_STEP_LIMIT = 20_000
_PREEMPTIONS: tuple[dict[str, object], ...] = (
    {"swap_space": 0, "preemption_mode": "auto"},
    {"swap_space": 1 << 18, "preemption_mode": "swap"},
    {"swap_space": 1 << 20, "preemption_mode": "swap"},
    {"swap_space": 1 << 20, "preemption_mode": "auto"},
)


@dataclass
class _Wish:
    """A request to come, and in how many steps it, or only its sample ``index``, is stopped: None for never."""

    prompt: list[int]
    params: SamplingParams
    stop_after: int | None
    index: int | None


@dataclass
class Storm:
    """What came of a storm. wrong: answers unlike the plain engine's. lost: samples that never came."""

    num_requests: int = 0
    num_aborted: int = 0
    num_samples: int = 0
    num_preemptions: int = 0
    num_swaps: int = 0
    num_hits: int = 0
    num_steps_ahead: int = 0
    num_drafts: int = 0
    num_accepted: int = 0
    num_lost: int = 0
    num_leaked_blocks: int = 0
    wrong: list[str] = field(default_factory=list)


def run_storm(
    checkpoint: Checkpoint | MultiTokenCheckpoint,
    num_requests: int,
    *,
    per_round: int = 100,
    seed: int = 0,
    speculative_config: dict[str, object] | None = None,
) -> Storm:
    """Send ``num_requests`` through engines of all settings, ``per_round`` through each."""
    storm, rng = Storm(), random.Random(seed)
    plain = small_llm(checkpoint.path, max_model_len=_MAX_MODEL_LEN, enable_prefix_caching=False, max_num_seqs=64)
    llm = small_llm(checkpoint.path, max_model_len=_MAX_MODEL_LEN, speculative_config=speculative_config)
    while storm.num_requests < num_requests:
        budget = rng.choice((1, 2, 3, 5, 8, 13, 16, 31, 64))
        llm.engine.reconfigure(
            gpu_memory_utilization=0.9,
            max_num_batched_tokens=budget,
            max_num_seqs=rng.choice((4, 5, 8)),
            block_size=rng.choice((1, 4, 8, 16)),
            enable_prefix_caching=rng.random() < 0.5,
            **rng.choice(_PREEMPTIONS),
            async_scheduling=rng.random() < 0.5 and speculative_config is None,
        )
        shrink_pool(llm, num_tokens=_POOL_TOKENS)
        number = min(per_round, num_requests - storm.num_requests)
        is_plain = rng.random() < 0.4  # steps run ahead of their tokens where nothing but the likeliest is wanted
        _run_round(storm, llm, plain, [_wish(rng, budget, is_plain) for _ in range(number)], rng)
    plain.close()
    llm.close()
    return storm


def _wish(rng: random.Random, budget: int, is_plain: bool) -> _Wish:
    longest = _MAX_MODEL_LEN - 20
    length = budget * rng.randint(1, 4) + rng.randint(-1, 1) if rng.random() < 0.7 else rng.randint(1, longest)
    kind = random.Random(rng.randrange(4))  # few kinds of prompts, so that some begin alike
    prompt = [kind.randrange(1, VOCAB_SIZE) for _ in range(min(max(length, 1), longest))]
    if rng.random() < 0.5:
        prompt[-1] = rng.randrange(1, VOCAB_SIZE)
    params = SamplingParams(
        n=rng.randint(1, 4),
        temperature=0.0 if is_plain else rng.choice((0.0, 0.8)),
        seed=rng.randrange(1000),
        max_tokens=rng.randint(1, 20),
        ignore_eos=rng.random() < 0.5,
        stop_token_ids=rng.sample(range(1, VOCAB_SIZE), rng.choice((0, 0, 20))),
    )
    if not is_plain:
        params = replace(
            params,
            presence_penalty=rng.choice((0.0, 0.0, 0.0, 0.5)),
            prompt_logprobs=rng.choice((None, None, None, None, 1)),
            logprobs=rng.choice((None, None, None, 2)),
        )
    stop_after = rng.randint(0, 15) if rng.random() < 0.4 else None
    return _Wish(prompt, params, stop_after, rng.randrange(params.n) if rng.random() < 0.2 else None)


def _run_round(storm: Storm, llm: LLM, plain: LLM, wishes: list[_Wish], rng: random.Random) -> None:
    engine = llm.engine
    waiting, requests, stops = iter(enumerate(wishes)), [], Counter[int]()
    is_over = False
    for step in range(_STEP_LIMIT):
        while not is_over and len(engine.serving.requests) < _MOST_BESIDE and rng.random() < 0.7:
            number, wish = next(waiting, (-1, None))
            if wish is None:
                is_over = True
                break
            requests.append(engine.add_request(f"r{number}", wish.prompt, wish.params))
            stops[number] = step + (wish.stop_after if wish.stop_after is not None else _STEP_LIMIT)
        for number in [number for number, at in stops.items() if at <= step]:
            engine.abort(f"r{number}", wishes[number].index)
            del stops[number]
        if engine.has_unfinished_requests():
            engine.step()
            engine.check()
        elif is_over:
            break
    assert is_over and not engine.has_unfinished_requests(), "a request runs for ever"
    _count(storm, llm, wishes, requests)
    storm.wrong += _wrong(plain, wishes, requests)


def _count(storm: Storm, llm: LLM, wishes: list[_Wish], requests: list[Request]) -> None:
    engine = llm.engine
    engine.step()  # takes the tokens that were on their way as the last request was stopped
    stats = llm.get_stats()
    assert not engine.serving.requests, f"requests are held though none is unfinished: {list(engine.serving.requests)}"
    assert engine.scheduler.num_orphan_tokens == 0, "tokens of nobody are waited for"
    storm.num_requests += len(wishes)
    storm.num_leaked_blocks += stats["num_used_blocks"]
    storm.num_preemptions += stats["num_preemptions"]
    storm.num_swaps += stats["num_swaps"]
    storm.num_hits += stats["prefix_cache_hits"]
    storm.num_steps_ahead += stats["num_steps_ahead"]
    storm.num_drafts += engine.draft_counts.num_draft_tokens
    storm.num_accepted += engine.draft_counts.num_accepted_tokens
    for wish, request in zip(wishes, requests, strict=True):
        assert request.is_finished, f"{request.request_id} never ended"
        storm.num_aborted += _was_stopped(request)
        storm.num_samples += len(request.sequences)
        storm.num_lost += 0 if _was_stopped(request) else wish.params.n - len(request.sequences)


def _was_stopped(request: Request) -> bool:
    return any(
        sequence.finish_reason is not None and sequence.finish_reason.value == "abort" for sequence in request.sequences
    )


def _wrong(plain: LLM, wishes: list[_Wish], requests: list[Request]) -> Iterator[str]:
    kept = [(wish, request) for wish, request in zip(wishes, requests, strict=True) if not _was_stopped(request)]
    outputs = plain.generate([{"prompt_token_ids": wish.prompt} for wish, _ in kept], [wish.params for wish, _ in kept])
    for (wish, request), output in zip(kept, outputs, strict=True):
        for sequence, wanted in zip(request.sequences, output.outputs, strict=False):
            if sequence.output_token_ids != wanted.token_ids:
                yield f"{len(wish.prompt)} tokens, {wish.params}: {sequence.output_token_ids}, not {wanted.token_ids}"
        if output.prompt_logprobs is not None:
            assert request.prompt_logprobs is not None and request.prompt_logprobs.is_complete

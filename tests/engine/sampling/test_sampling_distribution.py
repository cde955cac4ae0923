"""Draws follow the exact distribution, for every way of narrowing it, and do not depend on the rest of the batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sampling_cases import ANSWER, CASES, PROMPT, VOCAB, exact, misfit, some_logits

from kvplan_engine.blocks.block_pool import BlockPool
from kvplan_engine.blocks.block_table import BlockTable
from kvplan_engine.blocks.layout import uniform_layout
from kvplan_engine.kernels import torch_ops
from kvplan_engine.memory.breakdown import SAMPLER_ELEMENT_BYTES, SAMPLER_ROWS
from kvplan_engine.requests.request import Request, Sequence
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.sampling.sampler import Draw, Sampler

NUM_DRAWS = 3200
BLOCKS = BlockPool(1, uniform_layout(16))


def make_sampler(vocab_size: int = VOCAB) -> Sampler:
    memory = torch.empty(SAMPLER_ROWS * vocab_size * SAMPLER_ELEMENT_BYTES, dtype=torch.uint8)
    return Sampler(memory, vocab_size, torch_ops, engine_seed=0)


def sequence_of(params: SamplingParams, *, number: int = 0, answer: list[int] = ANSWER) -> Sequence:
    sequence = Sequence(Request("r", PROMPT, params), 0, [*PROMPT, *answer], BlockTable(BLOCKS))
    sequence.number = number  # what stands for a seed where a request has none
    return sequence


def draw(sampler: Sampler, logits: torch.Tensor, sequences: list[Sequence]) -> list[int]:
    """One token for each sequence, all from the same ``logits`` [vocab_size]."""
    rows = logits.expand(len(sequences), -1).contiguous()
    draws = [Draw(row, sequence) for row, sequence in enumerate(sequences)]
    return [token.token_id for token in sampler.sample(rows, draws, [frozenset()] * len(draws))]


@pytest.fixture(scope="module")
def logits() -> torch.Tensor:
    return some_logits()


WAYS = {"by inversion": False, "by race": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "way"),
    [
        # CI draws each case in one of the ways
        pytest.param(case, way, marks=() if (number + place) % 2 == 0 else pytest.mark.exhaustive)
        for number, case in enumerate(CASES)
        for place, way in enumerate(WAYS)
    ],
)
def test_draws_follow_the_exact_distribution(logits: torch.Tensor, case: str, way: str) -> None:
    params, seeded = SamplingParams(**CASES[case]), WAYS[way]
    expected = exact(logits.numpy(), params)
    sequences = [
        sequence_of(replace(params, seed=number) if seeded else params, number=number) for number in range(NUM_DRAWS)
    ]
    counts = np.bincount(draw(make_sampler(), logits, sequences), minlength=VOCAB)
    assert misfit(counts, expected) < 4
    if case != "plain":
        plain = exact(logits.numpy(), SamplingParams())
        with_plain = counts[counts > 0] / NUM_DRAWS - plain[counts > 0]
        assert abs(with_plain).max() > 0.01, "a case that plain sampling would pass"


def test_positions_of_one_seeded_request_are_independent_draws(logits: torch.Tensor) -> None:
    params = SamplingParams(seed=1)
    counts = np.zeros(VOCAB)
    pairs = np.zeros((2, 2))
    sampler = make_sampler()
    sequences = [sequence_of(params, answer=[0] * position) for position in range(3000)]
    tokens = draw(sampler, logits, sequences)
    counts = np.bincount(tokens, minlength=VOCAB)
    expected = exact(logits.numpy(), SamplingParams())
    assert misfit(counts, expected) < 4
    likely = expected.argsort()[-4:]
    is_likely = np.isin(tokens, likely).astype(int)
    np.add.at(pairs, (is_likely[:-1], is_likely[1:]), 1)
    share = is_likely.mean()
    chance = np.outer([1 - share, share], [1 - share, share]).ravel()
    assert misfit(pairs.ravel(), chance) < 4


def test_mixed_rows_get_what_each_would_get_alone(logits: torch.Tensor) -> None:
    """Greedy, plain, truncated and seeded rows in one call, more than fit the sampler's memory at a time."""
    kinds = [
        SamplingParams(temperature=0.0),
        SamplingParams(),
        SamplingParams(top_p=0.6, temperature=1.3),
        SamplingParams(seed=3, top_k=7),
        SamplingParams(seed=3),
        SamplingParams(presence_penalty=1.0),
        SamplingParams(temperature=0.0, logit_bias={2: 50.0}),
    ]
    sequences = [sequence_of(kinds[number % len(kinds)], number=number) for number in range(50)]
    together = draw(make_sampler(), logits, sequences)
    assert together == [draw(make_sampler(), logits, [sequence])[0] for sequence in sequences]
    assert together[0] == int(logits.argmax())
    assert together[6] == 2


def test_seeded_draws_survive_other_rounding() -> None:
    """Batches of different size round differently; the same seed still draws the same tokens from 50,000."""
    logits = torch.randn(50_000, generator=torch.Generator().manual_seed(1)) * 0.5
    jitter = 1 + 1e-6 * torch.randn(50_000, generator=torch.Generator().manual_seed(2))
    sequences = [sequence_of(SamplingParams(seed=number)) for number in range(64)]
    sampler = make_sampler(50_000)
    tokens = draw(sampler, logits, sequences)
    assert tokens == draw(sampler, logits * jitter, sequences)
    assert len(set(tokens)) > 60


def test_nucleus_larger_than_the_likeliest_few_is_exact() -> None:
    logits = torch.randn(4096, generator=torch.Generator().manual_seed(4)) * 0.3
    params = SamplingParams(top_p=0.8)
    expected = exact_large(logits.double().numpy(), 0.8)
    sampler = make_sampler(4096)
    sequences = [sequence_of(params, number=number) for number in range(3200)]
    tokens = np.array(draw(sampler, logits, sequences))
    assert expected[tokens].min() > 0
    groups = np.array_split(np.flatnonzero(expected), 20)
    group_of = np.full(4096, -1)
    for index, group in enumerate(groups):
        group_of[group] = index
    counts = np.bincount(group_of[tokens], minlength=20)
    assert misfit(counts, np.array([expected[group].sum() for group in groups])) < 4


def exact_large(logits: np.ndarray, top_p: float) -> np.ndarray:
    p = np.exp(logits - logits.max())
    p /= p.sum()
    order = np.argsort(-p)
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= top_p]] = 0
    return p / p.sum()


def test_logprobs_are_those_of_the_raw_logits(logits: torch.Tensor) -> None:
    params = SamplingParams(temperature=0.3, top_k=2, logprobs=3, presence_penalty=2.0, logit_bias={1: 40.0})
    (token,) = make_sampler().sample(logits[None], [Draw(0, sequence_of(params))], [frozenset()])
    raw = torch.log_softmax(logits.double(), -1)
    assert token.token_id == 1
    assert token.logprob == pytest.approx(float(raw[1]), abs=1e-5)
    best = raw.topk(3).indices.tolist()
    assert token.top_logprobs is not None
    assert set(token.top_logprobs) == {*best, 1}
    for index, value in token.top_logprobs.items():
        assert value == pytest.approx(float(raw[index]), abs=1e-5)


def test_stop_tokens_wait_for_min_tokens(logits: torch.Tensor) -> None:
    best = int(logits.argmax())
    params = SamplingParams(temperature=0.0, min_tokens=8, max_tokens=9)
    sampler = make_sampler()
    early, late = sequence_of(params, answer=[0] * 7), sequence_of(params, answer=[0] * 8)
    draws = [Draw(0, early), Draw(1, late)]
    tokens = sampler.sample(logits.expand(2, -1).contiguous(), draws, [frozenset({best})] * 2)
    assert tokens[0].token_id != best
    assert tokens[1].token_id == best


def test_penalties_count_as_the_answer_grows(logits: torch.Tensor) -> None:
    """The counts kept between steps are those of the whole answer."""
    sequence = sequence_of(SamplingParams(frequency_penalty=2.0, temperature=0.0), answer=[])
    sampler = make_sampler()
    want = logits.clone()
    for _ in range(40):
        (token,) = draw(sampler, logits, [sequence])
        assert token == int(want.argmax())
        want[token] -= 2.0
        sequence.token_ids.append(token)


def test_a_token_without_probability_is_not_drawn_when_sums_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU adds in another order for each token, so a sum may grow, a little, where nothing was added."""
    sampler, params = make_sampler(), SamplingParams(temperature=1.0, top_k=5)
    logits = torch.from_numpy(np.random.default_rng(5).standard_normal(VOCAB).astype(np.float32) * 2)
    expected = exact(logits.numpy(), params)
    impossible = int(np.flatnonzero(expected == 0)[3])
    cumsum = torch.cumsum

    def rounded(probabilities: torch.Tensor, dim: int, out: torch.Tensor) -> torch.Tensor:
        cumsum(probabilities, dim=dim, out=out)[:, impossible:].add_(0.1)
        return out

    monkeypatch.setattr(torch, "cumsum", rounded)
    tokens = draw(sampler, logits, [sequence_of(params, number=number) for number in range(NUM_DRAWS)])
    assert misfit(np.bincount(tokens, minlength=VOCAB), expected) < 4

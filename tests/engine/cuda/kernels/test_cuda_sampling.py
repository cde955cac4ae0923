"""The kernel that chooses tokens, its source run on the CPU, against a twin in numpy and the exact distribution."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from draw_twin import Drawer, distances, limit, philox, winner
from sampling_cases import ANSWER, CASES, PROMPT, VOCAB, exact, misfit, some_logits

from kvplan_engine.blocks.block_pool import BlockPool
from kvplan_engine.blocks.block_table import BlockTable
from kvplan_engine.blocks.layout import uniform_layout
from kvplan_engine.kernels.cuda.launching.emulation import BACKWARD, EmulatedRuntime
from kvplan_engine.kernels.cuda.sampling import DRAW_ROW, MOST_TIMES, CudaDraws, StepTokens
from kvplan_engine.requests.request import Request, Sequence
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.sampling.draw_rows import draw_row
from kvplan_engine.sampling.logits import adjust_logits

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
BLOCKS = BlockPool(1, uniform_layout(16))
INF = math.inf
SHUFFLED = 5  # an order of the threads of a block


@pytest.fixture(params=[0, BACKWARD], ids=["forward", "backward"], scope="module")
def kernel(request: pytest.FixtureRequest) -> CudaDraws:
    return CudaDraws(EmulatedRuntime(order=request.param))


def sequence_of(
    params: SamplingParams, *, number: int = 0, answer: list[int] = ANSWER, stop_ids: frozenset[int] = frozenset()
) -> Sequence:
    request = Request("r", PROMPT, params)
    request.stop_ids = stop_ids
    sequence = Sequence(request, 0, [*PROMPT, *answer], BlockTable(BLOCKS))
    sequence.number = number
    return sequence


def rows_of(number: int, **fields: object) -> np.ndarray:
    """Rows that draw, with a scale of 1: logits are log2 of weights."""
    rows = np.zeros(number, DRAW_ROW)
    defaults = {"scale": 1.0, "max_distance": INF, "top_p": 1.0, "key": np.arange(1, number + 1)}
    for name, value in (defaults | fields).items():
        rows[name] = value
    return rows


# ---- random numbers


@pytest.mark.parametrize(
    ("key", "counters", "words"),
    [
        (0, (0, 0, 0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, (2**32 - 1,) * 4, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            0x299F31D0_A4093822,
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_the_twins_generator_is_philox(key: int, counters: tuple[int, ...], words: str) -> None:
    """The known answers of Random123 (kat_vectors, philox4x32 10)."""
    assert " ".join(f"{int(word):08x}" for word in philox(key, counters)) == words


@pytest.mark.parametrize(("dtype", "width"), [(F32, 384), (BF16, 2056), (F16, 1027)])
def test_the_winner_is_the_twins(kernel: CudaDraws, dtype: torch.dtype, width: int) -> None:
    logits = (torch.randn(width, generator=torch.Generator().manual_seed(width)) * 3).to(dtype)
    rows = rows_of(6, scale=1.3, key=np.array([0, 1, 2**32, 2**63, 2**64 - 1, 12345], np.uint64))
    rows["top_p"][3:] = 0.9
    positions = torch.tensor([0, 1, 7, 100_000, 3, 3])
    got = Drawer(kernel, width).draw_rows(logits.expand(6, -1).contiguous(), rows, positions)
    away = distances(logits.float().numpy(), 1.3)
    wanted = [winner(away, row, position) for row, position in zip(rows, positions.tolist(), strict=True)]
    assert all(ahead > 1e-4 for _, ahead in wanted), "too close for rounding"
    assert got == [token for token, _ in wanted]


# ---- what is kept


def weighted(weights: list[int], width: int) -> torch.Tensor:
    """Logits whose tokens have these powers of two as weights, the rest none."""
    logits = torch.full((width,), -INF)
    logits[torch.arange(len(weights)) * 5 % width] = torch.tensor([math.log2(each) for each in weights])
    return logits


EXACT_CASES = [
    ([8, 4, 2, 1, 1], {"top_p": 0.5}, 0.0),  # exactly half: the first alone
    ([8, 4, 2, 1, 1], {"top_p": 0.5000001}, 1.0),
    ([8, 4, 2, 1, 1], {"top_p": 0.75}, 1.0),
    ([8, 4, 2, 1, 1], {"top_p": 0.9}, 3.0),  # both of the last, which are alike
    ([8, 4, 2, 1, 1], {"top_k": 4}, 3.0),
    ([8, 4, 2, 1, 1], {"top_k": 3}, 2.0),
    ([8, 4, 2, 1, 1], {"top_k": 7}, INF),  # there are only five
    ([8, 4, 2, 1, 1], {"max_distance": 2.0}, 2.0),  # min-p of a quarter
    ([8, 4, 2, 1, 1], {"top_k": 2, "top_p": 0.6}, 0.0),  # top-p of what top-k leaves: 8 of 12
    ([8, 4, 2, 1, 1], {"top_k": 2, "top_p": 0.7}, 1.0),
    ([8, 4, 2, 1, 1], {"max_distance": 1.0, "top_k": 9, "top_p": 0.7}, 1.0),
    ([4, 4, 4, 4], {"top_k": 1}, 0.0),  # all are as likely as the first
    ([4, 4, 4, 4], {"top_p": 1e-9}, 0.0),
    ([2**40, 1], {"top_p": 0.999999999}, 0.0),  # the other one has no weight
    ([2**28, 1, 1], {"top_p": (2**28 + 1) / (2**28 + 2)}, 28.0),
]


@pytest.mark.parametrize("width", [24, 384])
def test_sets_are_exact(kernel: CudaDraws, width: int) -> None:
    """Sums are of integers: not even a share that is met exactly depends on rounding."""
    for weights, fields, wanted in EXACT_CASES:
        drawer, rows = Drawer(kernel, width), rows_of(1, **fields)
        (token,) = drawer.draw_rows(weighted(weights, width), rows, torch.zeros(1, dtype=torch.int64))
        assert drawer.limits.tolist() == [wanted], (weights, fields)
        away = distances(weighted(weights, width).numpy(), 1.0)
        assert away[token] <= wanted
        assert limit(away, rows[0]) == wanted, "the twin"


NARROWED = [
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 2000},
    {"top_p": 0.1},
    {"top_p": 0.9},
    {"top_p": 0.9999},
    {"max_distance": 3.3},
    {"max_distance": 6.0, "top_k": 100, "top_p": 0.8},
]


@pytest.mark.parametrize(
    ("dtype", "width", "spread", "pad"),
    [(F32, 2051, 3.0, 0), (F32, 384, 1e-4, 0), (BF16, 4104, 4.0, 8), (F16, 1536, 20.0, 0), (F32, 40, 1e6, 0)],
)
def test_sets_are_those_of_a_sort(dtype: torch.dtype, width: int, spread: float, pad: int) -> None:
    """Many ties in 16 bits, hardly any differences, huge ones, and rows that begin anywhere."""
    generator = torch.Generator().manual_seed(width)
    logits = (torch.randn(len(NARROWED), width + pad, generator=generator) * spread).to(dtype)[:, :width]
    rows = np.concatenate([rows_of(1, **fields) for fields in NARROWED])
    drawer = Drawer(CudaDraws(EmulatedRuntime(order=SHUFFLED)), width)
    tokens = drawer.draw_rows(logits, rows, torch.arange(len(rows)))
    away = [distances(row, 1.0) for row in logits.float().numpy()]
    assert drawer.limits.tolist() == [limit(each, row) for each, row in zip(away, rows, strict=True)]
    assert all(each[token] <= most for each, token, most in zip(away, tokens, drawer.limits.tolist(), strict=True))


def test_equal_rows_beside_others_and_in_another_order_are_chosen_alike(kernel: CudaDraws) -> None:
    """A draw is a function of the row, the key and the position: neither batch nor row number matter."""
    logits = torch.randn(7, 384, generator=torch.Generator().manual_seed(1))
    rows, positions = rows_of(7, top_p=0.8), torch.arange(7)
    together = Drawer(kernel, 384).draw_rows(logits, rows, positions)
    backward = Drawer(kernel, 384).draw_rows(logits.flip(0).contiguous(), rows[::-1].copy(), positions.flip(0))
    alone = [Drawer(kernel, 384).draw_rows(logits[i : i + 1], rows[i : i + 1], positions[i : i + 1]) for i in range(7)]
    assert together == backward[::-1] == [token for (token,) in alone]


# ---- odd logits


def test_ties_infinities_and_what_is_not_a_number(kernel: CudaDraws) -> None:
    """The same for greedy rows and random ones, but that of several tokens at infinity one is drawn."""
    logits = torch.zeros(6, 40)
    logits[0, 30:] = 1.0  # ties: the lowest
    logits[1, [7, 9]] = float("nan")
    logits[2] = -INF
    logits[3, [11, 12]] = INF
    logits[4, 1:] = -INF
    logits[5, :39] = -INF
    rows = rows_of(6, scale=0.0)
    assert Drawer(kernel, 40).draw_rows(logits, rows, torch.arange(6)) == [30, 7, 0, 11, 0, 39]
    drawn = set()
    for seed in range(8):
        rows = rows_of(6, key=np.arange(6) + 6 * seed, top_p=0.9, top_k=30)
        tokens = Drawer(kernel, 40).draw_rows(logits, rows, torch.arange(6))
        assert (tokens[1], tokens[2], tokens[4], tokens[5]) == (7, 0, 0, 39)
        drawn.add(tokens[3])
    assert drawn == {11, 12}


# ---- what sequences ask for


def test_changed_logits_are_the_samplers(kernel: CudaDraws) -> None:
    """Greedy under every penalty and bias, while the answer grows by the tokens that are chosen."""
    stops = frozenset({2, 9})
    cases = [
        {"repetition_penalty": 1.7},
        {"repetition_penalty": 0.7, "frequency_penalty": 0.6},
        {"presence_penalty": 1.1},
        {"frequency_penalty": 0.9, "logit_bias": {9: 2.5, 0: -100.0}},
        {"min_tokens": 7, "logit_bias": {2: 90.0, 14: 1.0}},
        {"min_tokens": 7, "repetition_penalty": 1.3},
    ]
    params = [SamplingParams(temperature=0.0, max_tokens=16, **case) for case in cases]
    sequences = [sequence_of(each, stop_ids=stops) for each in params]
    for _ in range(4):
        wanted = []
        for sequence in sequences:
            row = some_logits()
            adjust_logits(row, sequence, stops)
            wanted.append(int(row.argmax()))
        drawer = Drawer(kernel, VOCAB)
        before = Drawer(kernel, VOCAB)
        assert drawer(some_logits(), sequences) == wanted
        for sequence, token in zip(sequences, wanted, strict=True):
            sequence.append_token(token)
        before(some_logits(), sequences)  # whose counts were sent anew, before the choice
        counted = [index for index, each in enumerate(params) if each.has_penalties]
        for index in counted:
            of_answer = Counter(sequences[index].output_token_ids)
            codes = drawer.counts[index].to(torch.int32) & MOST_TIMES
            assert {token: int(codes[token]) for token in of_answer} == dict(of_answer)


def test_counts_end_at_the_most_that_fits(kernel: CudaDraws) -> None:
    params = SamplingParams(temperature=0.0, frequency_penalty=-2.0, max_tokens=9)
    sequence = sequence_of(params, answer=[9] * (MOST_TIMES + 50))
    drawer = Drawer(kernel, VOCAB)
    assert drawer(some_logits(), [sequence]) == [9]
    assert int(drawer.counts[0, 9]) == MOST_TIMES


NUM_DRAWS = 500
CASES_LEFT_OUT = ("cold", "top-k of one", "presence", "frequency", "top-p of next to nothing", "top-k, top-p")


@pytest.mark.parametrize("case", [case for case in CASES if case not in CASES_LEFT_OUT])
def test_draws_follow_the_exact_distribution(case: str) -> None:
    """As the sampler's (test_sampling_distribution): a request's seed and the position make independent draws."""
    params, logits = SamplingParams(**CASES[case]), some_logits()
    expected = exact(logits.numpy(), params)
    sequences = [sequence_of(replace(params, seed=number)) for number in range(NUM_DRAWS)]
    tokens = Drawer(CudaDraws(EmulatedRuntime()), VOCAB)(logits, sequences)
    assert misfit(np.bincount(tokens, minlength=VOCAB), expected) < 4


def test_positions_are_independent_draws() -> None:
    sequence, logits, number = sequence_of(SamplingParams(seed=1)), some_logits(), 1500
    rows = np.repeat(draw_row(sequence, 0, VOCAB), number)
    tokens = Drawer(CudaDraws(EmulatedRuntime()), VOCAB).draw_rows(logits, rows, torch.arange(number))
    expected = exact(logits.numpy(), SamplingParams())
    assert misfit(np.bincount(tokens, minlength=VOCAB), expected) < 4
    is_likely = np.isin(tokens, expected.argsort()[-4:]).astype(int)
    pairs = np.zeros((2, 2))
    np.add.at(pairs, (is_likely[:-1], is_likely[1:]), 1)
    share = is_likely.mean()
    assert misfit(pairs.ravel(), np.outer([1 - share, share], [1 - share, share]).ravel()) < 4


# ---- shapes


def test_wrong_arguments_are_refused(kernel: CudaDraws) -> None:
    logits, counts, out = torch.zeros(2, 16), torch.zeros(2, 16, dtype=torch.int16), torch.zeros(2, dtype=torch.int64)
    draws, tokens = torch.zeros(2, DRAW_ROW.itemsize, dtype=torch.uint8), StepTokens(torch.arange(2))
    with pytest.raises(ValueError, match="no rows to choose from"):
        kernel(logits[:, :0], draws, counts, tokens, out)
    with pytest.raises(ValueError, match="not rows of 64 bytes"):
        kernel(logits, draws[:, :32], counts, tokens, out)
    with pytest.raises(ValueError, match="3 tokens are wanted"):
        kernel(logits, draws, counts, tokens, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="do not fit 16 logits"):
        kernel(logits, draws, counts[:, :8], tokens, out)
    with pytest.raises(ValueError, match="out is"):
        kernel(logits, draws, counts, tokens, out.int())

"""The kernel that chooses tokens on a real device: the twin's tokens and sets, exact sums, waits, and replays."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine" / "cuda" / "kernels"))  # the emulated tests

from draw_twin import distances, limit, waits, winner
from test_cuda_sampling import EXACT_CASES, NARROWED, rows_of, weighted

from kvplan_engine.kernels.cuda.launching.driver import current_runtime
from kvplan_engine.kernels.cuda.sampling import CudaDraws, StepTokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
DEVICE = "cuda"
VOCABULARY = 128256


def draw(logits: torch.Tensor, rows: np.ndarray, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A token from row i of ``logits`` for row i of ``rows``, and how far from the likeliest it might have been."""
    number = len(rows)
    counts = torch.zeros(1, -(-logits.shape[1] // 8) * 8, dtype=torch.int16, device=DEVICE)
    out, limits = torch.full((number,), -1, device=DEVICE), torch.full((number,), -1.0, device=DEVICE)
    memory = torch.from_numpy(rows.view(np.uint8).reshape(number, -1)).to(DEVICE)
    CudaDraws(current_runtime())(logits.to(DEVICE), memory, counts, StepTokens(positions.to(DEVICE)), out, limits)
    return out.cpu(), limits.cpu()


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_tokens_and_sets_are_the_twins(dtype: torch.dtype) -> None:
    """A device's exp2 differs from a host's in the last bits: a set may end one token earlier or later."""
    generator, number = torch.Generator().manual_seed(3), len(NARROWED)
    logits = (torch.randn(number, VOCABULARY, generator=generator) * 3).to(dtype)
    rows = np.concatenate([rows_of(1, **fields) for fields in NARROWED])
    tokens, limits = draw(logits, rows, torch.arange(number))
    for index, row in enumerate(rows):
        away = distances(logits[index].float().numpy(), 1.0)
        nearer, farther = sorted([limit(away, row), float(limits[index])])
        assert len(np.unique(away[(away > nearer) & (away <= farther)])) <= 1
        token, ahead = winner(away, row, index)
        assert ahead < 1e-3 or int(tokens[index]) == token


def test_sums_are_exact() -> None:
    for weights, fields, wanted in EXACT_CASES:
        _, limits = draw(weighted(weights, 384)[None], rows_of(1, **fields), torch.zeros(1, dtype=torch.int64))
        assert limits.tolist() == [wanted], (weights, fields)


def test_waits_are_exponential() -> None:
    """Of tokens that are all alike the winner is the one that waits least: the twin's."""
    number = 256
    rows = rows_of(number)
    tokens, _ = draw(torch.zeros(number, VOCABULARY, dtype=BF16), rows, torch.arange(number))
    wanted = [int(waits(int(row["key"]), position, VOCABULARY).argmin()) for position, row in enumerate(rows)]
    assert sum(token == one for token, one in zip(tokens.tolist(), wanted, strict=True)) >= number - 2


def test_a_replay_follows_what_rows_ask_for() -> None:
    kernel, number = CudaDraws(current_runtime()), 8
    logits = torch.randn(number, VOCABULARY, device=DEVICE).to(BF16)
    counts = torch.zeros(1, VOCABULARY, dtype=torch.int16, device=DEVICE)
    memory = torch.zeros(number, 64, dtype=torch.uint8, device=DEVICE)
    positions, out = torch.arange(number, device=DEVICE), torch.zeros(number, dtype=torch.int64, device=DEVICE)
    kernel(logits, memory, counts, StepTokens(positions), out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(logits, memory, counts, StepTokens(positions), out)
    graph.replay()
    assert out.tolist() == logits.argmax(-1).tolist()
    rows = rows_of(number, top_p=0.95)
    memory.copy_(torch.from_numpy(rows.view(np.uint8).reshape(number, -1)))
    graph.replay()
    replayed = out.tolist()
    kernel(logits, memory, counts, StepTokens(positions), out)
    assert out.tolist() == replayed != logits.argmax(-1).tolist()

"""Ways of narrowing a distribution over a small vocabulary, its definition, and how well draws fit it."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import torch

from kvplan_engine.requests.sampling_params import SamplingParams

VOCAB = 24
PROMPT = [3, 5, 5, 7]
ANSWER = [3, 9, 9, 9, 11]


def some_logits() -> torch.Tensor:
    """[VOCAB] float32."""
    values = torch.randn(VOCAB, generator=torch.Generator().manual_seed(5)) * 1.5
    values[[3, 5, 9]] = torch.tensor([2.0, -0.5, 2.5])  # penalties shall have something to do
    return values


def exact(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """The distribution by its definition, in float64: bias, penalties, temperature, min-p, top-k, top-p."""
    z = logits.astype(np.float64).copy()
    for token, bias in params.logit_bias.items():
        z[token] += bias
    for token in set(PROMPT) | set(ANSWER):
        z[token] = z[token] / params.repetition_penalty if z[token] > 0 else z[token] * params.repetition_penalty
    for token, times in Counter(ANSWER).items():
        z[token] -= params.frequency_penalty * times + params.presence_penalty
    z /= params.temperature
    p = np.exp(z - z.max())
    p /= p.sum()
    p[p < params.min_p * p.max()] = 0
    order = np.argsort(-p, kind="stable")
    if params.top_k > 0:
        p[order[params.top_k :]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= params.top_p]] = 0
    return p / p.sum()


def misfit(counts: np.ndarray, expected: np.ndarray) -> float:
    """Pearson's chi-square as a number of standard deviations (Wilson and Hilferty, 1931)."""
    assert counts[expected == 0].sum() == 0, "a token was drawn that cannot be"
    kept = expected > 0
    want = expected[kept] * counts.sum()
    chi_square = ((counts[kept] - want) ** 2 / want).sum()
    freedom = kept.sum() - 1
    if freedom == 0:
        return 0.0
    spread = 2 / (9 * freedom)
    return float(((chi_square / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


CASES = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 1.7},
    "top-k": {"top_k": 5},
    "top-k of one": {"top_k": 1},
    "top-p": {"top_p": 0.7},
    "top-p of next to nothing": {"top_p": 1e-6},
    "min-p": {"min_p": 0.1},
    "top-k, top-p": {"top_k": 8, "top_p": 0.8},
    "min-p, top-k, top-p, temperature": {"min_p": 0.05, "top_k": 9, "top_p": 0.9, "temperature": 1.4},
    "repetition": {"repetition_penalty": 1.6},
    "frequency": {"frequency_penalty": 0.4},
    "presence": {"presence_penalty": 1.5},
    "negative penalties": {"presence_penalty": -0.5, "frequency_penalty": -0.3, "repetition_penalty": 0.8},
    "bias": {"logit_bias": {0: 2.0, 9: 1.5, 5: -100.0}},
    "everything": {
        "temperature": 0.8,
        "top_k": 12,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
        "logit_bias": {9: 3.0, 1: -1.0},
    },
}

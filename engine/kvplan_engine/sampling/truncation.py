"""Which tokens may be drawn: min-p, top-k and top-p, each as the smallest probability that a token must have.

Tokens as likely as the last one kept are kept too. So the result does not depend on how a sort orders ties, which would
make a draw depend on what else is in the batch.
"""

from __future__ import annotations

import numpy as np
import torch

from kvplan_engine.requests.sampling_params import SamplingParams

# Most top-p nuclei lie within the likeliest few; finding these takes a third of the time of sorting a vocabulary.
_NUM_LIKELIEST = 256


def truncates(params: SamplingParams) -> bool:
    return params.min_p > 0 or params.top_k > 0 or params.top_p < 1.0


def truncate_row(
    probabilities: torch.Tensor, params: SamplingParams, ranked: torch.Tensor, cumulative: torch.Tensor
) -> None:
    """Zero in ``probabilities`` [vocab_size], in place, what min-p, then top-k, then top-p drop.

    top-p is a share of what min-p and top-k have left. ranked, cumulative: [vocab_size] float32, scratch memory.
    """
    if params.min_p > 0:
        _drop_below(probabilities, params.min_p * float(probabilities.max()))
    if 0 < params.top_k < probabilities.numel():
        _drop_below(probabilities, float(probabilities.topk(params.top_k).values[-1]))
    if params.top_p < 1.0:
        total = float(probabilities.sum())
        threshold = _among_likeliest(probabilities, params, total)
        if threshold is None:
            threshold = _among_all(probabilities, (1.0 - params.top_p) * total, ranked, cumulative)
        _drop_below(probabilities, threshold)


def _drop_below(probabilities: torch.Tensor, threshold: float) -> None:
    just_below = np.nextafter(np.float32(threshold), np.float32(0))  # torch keeps what is greater, not what is equal
    torch.nn.functional.threshold(probabilities, float(just_below), 0.0, inplace=True)


def _among_likeliest(probabilities: torch.Tensor, params: SamplingParams, total: float) -> float | None:
    """The least probability among the fewest tokens that reach top-p; None if the likeliest few do not reach it."""
    likeliest = probabilities.topk(min(max(_NUM_LIKELIEST, params.top_k), probabilities.numel())).values
    position = int(torch.searchsorted(likeliest.cumsum(-1), params.top_p * total))
    return float(likeliest[position]) if position < likeliest.numel() else None


def _among_all(probabilities: torch.Tensor, dropped: float, ranked: torch.Tensor, cumulative: torch.Tensor) -> float:
    """The same from the other end: the first token after the least likely ones, which together have ``dropped``."""
    if ranked.device.type == "cpu":  # NumPy sorts with vector instructions and no indices: 15 times torch's speed
        ranked.copy_(probabilities)
        ranked.numpy().sort()
    else:
        ranked.copy_(probabilities.sort().values)
    torch.cumsum(ranked, dim=-1, out=cumulative)
    position = int(torch.searchsorted(cumulative, dropped, right=True))
    return float(ranked[min(position, ranked.numel() - 1)])

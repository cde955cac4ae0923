"""A mixture of experts in plain torch: the definition that the kernels are tested against.

Computes in float32, or in float64 for float64 inputs, and rounds once, when the result is stored.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from kvplan_engine.description.feed_forward import Mixture, Mlp, Scoring
from kvplan_engine.kernels.mixture_weights import ExpertMatrices, ExpertWeights, MixtureWeights, QuantisedExperts
from kvplan_engine.kernels.quantised_weight import rounded_inputs
from kvplan_engine.kernels.torch_ops import _upcast

_NOTHING = float("-inf")


def run_mixture(x: torch.Tensor, mixture: Mixture, weights: MixtureWeights, out: torch.Tensor) -> None:
    """out [T, H] = the weighted sum of each row's experts of x [T, H], in the order of their numbers, shared last.

    Of the experts those that ``mixture`` holds: the others' part is another rank's.

    On a GPU nothing is read back, so that a step can be captured: every expert runs over all rows.
    """
    wide = _upcast(x)
    ids, shares = route(router_logits(wide, weights), mixture, weights.correction)
    inner = wide if weights.latent_down is None else wide @ weights.latent_down.to(wide.dtype).t()
    total = (_all_rows if x.is_cuda else _chosen_rows)(inner, mixture, weights.experts, ids, shares)
    if weights.latent_up is not None:
        total = total @ weights.latent_up.to(wide.dtype).t()
    if mixture.shared is not None and weights.shared is not None:
        result = _run_expert(wide, mixture.shared, weights.shared, 0)
        if weights.shared_gate is not None:
            result = result * torch.sigmoid(wide @ weights.shared_gate.to(wide.dtype).t())
        total += result
    out.copy_(total)


def _chosen_rows(
    x: torch.Tensor, mixture: Mixture, experts: ExpertWeights, ids: torch.Tensor, shares: torch.Tensor
) -> torch.Tensor:
    """Each expert over the rows that chose it."""
    total, held = torch.zeros_like(x), mixture.held_experts
    for expert in filter(held.__contains__, ids.unique().tolist()):
        rows, places = (ids == expert).nonzero(as_tuple=True)
        result = _run_expert(x[rows], mixture.expert, experts, expert - held.start)
        total.index_add_(0, rows, shares[rows, places].unsqueeze(1) * result)
    return total


def _all_rows(
    x: torch.Tensor, mixture: Mixture, experts: ExpertWeights, ids: torch.Tensor, shares: torch.Tensor
) -> torch.Tensor:
    """The same with a share of 0 for the rows that did not choose an expert: no count leaves the device."""
    total = torch.zeros_like(x)
    for place, expert in enumerate(mixture.held_experts):
        share = torch.where(ids == expert, shares, 0.0).sum(-1, keepdim=True)
        total += share * _run_expert(x, mixture.expert, experts, place)
    return total


def router_logits(x: torch.Tensor, weights: MixtureWeights) -> torch.Tensor:
    """[T, E] of x [T, H]."""
    logits = x @ weights.router.to(x.dtype).t()
    return logits if weights.router_bias is None else logits + weights.router_bias.to(x.dtype)


def route(
    logits: torch.Tensor, mixture: Mixture, correction: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts [T, top_k] int64 of each row, best first, and their weights [T, top_k]; see Mixture."""
    if mixture.scoring == "sparse_mixer":
        ids, shares = _sparse_mixer(logits, mixture)
    else:
        scores = _scores(logits, mixture.scoring)
        choice = scores if correction is None else scores + correction.to(scores.dtype)
        if mixture.num_groups > 1:
            choice = _within_groups(choice, mixture)
        ids = choice.topk(mixture.top_k, dim=-1).indices
        shares = scores.gather(1, ids)
        if mixture.scoring == "softmax_of_top":
            shares = shares.softmax(-1)
    if mixture.normalised:
        shares = shares / (shares.sum(-1, keepdim=True) + 1e-20)
    return ids, shares * mixture.scale


def _scores(logits: torch.Tensor, scoring: Scoring) -> torch.Tensor:
    match scoring:
        case "softmax":
            return logits.softmax(-1)
        case "sigmoid":
            return logits.sigmoid()
        case "sqrt_softplus":
            return functional.softplus(logits).sqrt()
        case "softmax_of_top":
            return logits
    raise ValueError(f"no scores are made by '{scoring}'")


def _within_groups(choice: torch.Tensor, mixture: Mixture) -> torch.Tensor:
    """``choice`` with minus infinity outside of the best groups."""
    groups = choice.view(choice.shape[0], mixture.num_groups, -1)
    best = groups.topk(2 if mixture.group_scoring == "top2_sum" and groups.shape[2] > 1 else 1, dim=-1).values
    chosen = best.sum(-1).topk(mixture.top_groups, dim=-1).indices
    stays = torch.zeros(groups.shape[:2], dtype=torch.bool, device=choice.device).scatter_(1, chosen, True)
    return groups.masked_fill(~stays.unsqueeze(-1), _NOTHING).view_as(choice)


def _sparse_mixer(logits: torch.Tensor, mixture: Mixture) -> tuple[torch.Tensor, torch.Tensor]:
    """Phi-MoE's choice (Liu et al., GRIN, 2024), one expert after the other."""
    left = logits.clone()
    ids, shares = [], []
    for _ in range(mixture.top_k):
        most, best = left.max(-1, keepdim=True)
        distance = (most - logits) / logits.abs().clamp(min=most)
        close = left.masked_fill(distance > 2 * mixture.jitter, _NOTHING)
        ids.append(best)
        shares.append(close.softmax(-1).gather(1, best))
        left = left.scatter(1, best, _NOTHING)
    return torch.cat(ids, 1), torch.cat(shares, 1)


def _run_expert(x: torch.Tensor, mlp: Mlp, weights: ExpertWeights, index: int) -> torch.Tensor:
    inner = _linear(x, weights.up, weights.up_bias, index)
    return _linear(activated(inner, mlp), weights.down, weights.down_bias, index)


def _linear(x: torch.Tensor, weight: ExpertMatrices, bias: torch.Tensor | None, index: int) -> torch.Tensor:
    rounded = rounded_inputs(x, weight.expert(index)) if isinstance(weight, QuantisedExperts) else x
    product = rounded.to(x.dtype) @ weight[index].to(x.dtype).t()
    return product if bias is None else product + bias[index].to(x.dtype)


def activated(inner: torch.Tensor, mlp: Mlp) -> torch.Tensor:
    """[T, F] of the first product [T, 2F], gate beside up, or [T, F] without a gate; see Mlp."""
    if not mlp.gated:
        return _activation(inner, mlp.activation)
    gate, up = inner.chunk(2, dim=-1)
    if mlp.activation != "swiglu_oai":
        return _activation(gate, mlp.activation) * up
    limit = float("inf") if mlp.limit is None else mlp.limit
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


def _activation(x: torch.Tensor, name: str) -> torch.Tensor:
    match name:
        case "silu":
            return functional.silu(x)
        case "gelu":
            return functional.gelu(x)
        case "gelu_tanh":
            return functional.gelu(x, approximate="tanh")
        case "relu":
            return functional.relu(x)
        case "relu2":
            return functional.relu(x).square()
    raise ValueError(f"no expert computes the activation '{name}'")

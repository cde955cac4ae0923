"""Mixtures of every kind with random weights, for every device's kernels."""

from __future__ import annotations

import torch

from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.kernels.mixture_weights import ExpertWeights, MixtureWeights
from kvplan_engine.kernels.torch_mixture import route, router_logits

HIDDEN = 72

MIXTURES = {
    "plain": Mixture(8, 2, Mlp(48, "silu")),
    "one of many": Mixture(70, 1, Mlp(33, "silu"), normalised=False),
    "top softmax": Mixture(9, 3, Mlp(64, "silu"), scoring="softmax_of_top", normalised=False, scale=0.7),
    "groups": Mixture(
        24,
        4,
        Mlp(40, "silu"),
        "sigmoid",
        scale=2.5,
        correction=True,
        num_groups=6,
        top_groups=2,
        shared=Mlp(80, "silu"),
    ),
    "best of groups": Mixture(
        16, 3, Mlp(40, "silu"), "softmax", normalised=False, num_groups=4, top_groups=2, group_scoring="max"
    ),
    "shared with a gate": Mixture(12, 4, Mlp(24, "silu"), shared=Mlp(100, "silu"), shared_gate=True),
    "gpt-oss": Mixture(
        8, 4, Mlp(72, "swiglu_oai", bias=True, limit=0.5), "softmax_of_top", normalised=False, router_bias=True
    ),
    "gelu": Mixture(
        6, 2, Mlp(30, "gelu_tanh"), "softmax", router_bias=True, shared=Mlp(8, "gelu_tanh"), shared_gate=True
    ),
    "without a gate": Mixture(10, 3, Mlp(56, "relu2", gated=False), "sigmoid", correction=True),
    "some of the experts": Mixture(
        9, 3, Mlp(24, "silu", bias=True), shared=Mlp(40, "silu"), shared_gate=True, held=range(4, 7)
    ),
    "sparse mixer": Mixture(16, 2, Mlp(48, "silu"), "sparse_mixer", normalised=False, jitter=0.3),
}


def _experts(count: int, mlp: Mlp, hidden: int, generator: torch.Generator, dtype: torch.dtype) -> ExpertWeights:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).mul_(shape[-1] ** -0.5).to(dtype)

    rows = 2 * mlp.size if mlp.gated else mlp.size
    up, down = random(count, rows, hidden), random(count, hidden, mlp.size)
    return ExpertWeights(up, down, *((random(count, rows), random(count, hidden)) if mlp.bias else ()))


def random_weights(mixture: Mixture, hidden: int, dtype: torch.dtype) -> MixtureWeights:
    generator = torch.Generator().manual_seed(mixture.num_experts)
    router = torch.randn(mixture.num_experts, hidden, generator=generator).mul_(2 * hidden**-0.5).to(dtype)
    return MixtureWeights(
        router,
        _experts(len(mixture.held_experts), mixture.expert, hidden, generator, dtype),
        torch.randn(mixture.num_experts, generator=generator).to(dtype) if mixture.router_bias else None,
        torch.randn(mixture.num_experts, generator=generator).to(dtype) if mixture.correction else None,
        _experts(1, mixture.shared, hidden, generator, dtype) if mixture.shared else None,
        torch.randn(1, hidden, generator=generator).to(dtype) if mixture.shared_gate else None,
    )


def random_rows(count: int, hidden: int, dtype: torch.dtype) -> torch.Tensor:
    """[count, hidden], strided."""
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, hidden + 5, generator=generator)[:, :hidden].to(dtype)


def clear_rows(x: torch.Tensor, mixture: Mixture, weights: MixtureWeights) -> torch.Tensor:
    """Whether rounding cannot change the choice of a row: the same experts with logits a little different."""
    logits = router_logits(x.double(), weights)
    want, _ = route(logits, mixture, weights.correction)
    clear = torch.ones(len(x), dtype=torch.bool)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        noise = 1e-4 * torch.randn(logits.shape, generator=generator, dtype=torch.float64)
        clear &= (route(logits + noise, mixture, weights.correction)[0] == want).all(-1)
    return clear

"""What a layer computes for each token alone: an MLP, or a mixture of which each token takes some experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu", "swiglu_oai", "situ"]
Scoring = Literal["softmax", "sigmoid", "softmax_of_top", "sqrt_softplus", "sparse_mixer"]


@dataclass(frozen=True, slots=True)
class Mlp:
    """Two matrices, up and down, or three when ``gated``: activation(gate) * up. gelu_tanh: the tanh formula.

    swiglu_oai: gpt-oss's gate, clamped at ``limit``: min(g, limit) * sigmoid(1.702 g) * (clamp(u) + 1). situ: Kimi
    K3's, which only counts.
    """

    size: int
    activation: Activation
    gated: bool = True
    bias: bool = False
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Mixture:
    """``num_experts`` MLPs of which each token takes the ``top_k`` that a router scores highest.

    scoring: softmax over all experts, sigmoid or sqrt(softplus) of each, softmax over the chosen ones alone, or Phi-
    MoE's sparse_mixer: one chosen expert after the other has its share of a softmax over those left whose logits are
    within twice ``jitter`` of the best, relative to their size. normalised: the chosen weights are divided by their
    sum. scale: then multiplied with this. correction: a bias of each expert that decides the choice and not the weight.
    num_groups, top_groups: experts are chosen from the best groups only. shared: an MLP that every token takes;
    shared_gate: weighted by a sigmoid of one more row of the router. router_bias: the router adds one. latent_size:
    experts work on a projection of the hidden state, and their sum is projected back (Nemotron 3 Super); latent_norm:
    and normalised before (Kimi K3). num_idle:
    further choices of the router, which give the token back as it is (LongCat). apart: experts and router read the
    residual stream through a norm of their own, not what the shared MLP reads, outputs of both are normalised before
    they are added, and each expert's is scaled (Gemma 4).

    whole_experts: several ranks divide the experts among them, not the inner elements of each. held: the numbers of
    those that a rank has, None for all; its router still chooses among ``num_experts``.
    """

    num_experts: int
    top_k: int
    expert: Mlp
    scoring: Scoring = "softmax"
    normalised: bool = True
    scale: float = 1.0
    correction: bool = False
    num_groups: int = 1
    top_groups: int = 1
    group_scoring: Literal["max", "top2_sum"] = "top2_sum"
    shared: Mlp | None = None
    shared_gate: bool = False
    router_bias: bool = False
    jitter: float = 0.0
    latent_size: int | None = None
    latent_norm: bool = False
    num_idle: int = 0
    apart: bool = False
    whole_experts: bool = False
    held: range | None = None

    @property
    def held_experts(self) -> range:
        """Numbers of the experts whose weights are there, one behind the other."""
        return range(self.num_experts) if self.held is None else self.held


FeedForward = Mlp | Mixture

"""The MLP's parameters: gate and up as one matrix, and down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.parameters.parameter import Parameter, Rows, norm, projection


def mlp_parameters(mlp: Mlp, hidden_size: int, prefix: str = "") -> Iterator[Parameter]:
    """Parameters of one MLP. prefix: before the parts' names, for an MLP inside of another part ("shared.")."""
    rows: Rows = (("gate", mlp.size), ("up", mlp.size)) if mlp.gated else (("up", mlp.size),)
    yield from projection(f"{prefix}up", rows, hidden_size, bias=mlp.bias, split="outputs")
    yield from projection(f"{prefix}down", hidden_size, mlp.size, bias=mlp.bias, split="inputs")
    if mlp.activation == "xielu":  # its two slopes are learned
        yield Parameter(f"{prefix}activation.alpha_p", (1,), "bias", "")
        yield Parameter(f"{prefix}activation.alpha_n", (1,), "bias", "")


# The parameters of a mixture of experts: the experts' matrices one below the other.


def mixture_parameters(mixture: Mixture, hidden_size: int) -> Iterator[Parameter]:
    """Parameters of a layer: the router, the experts [experts x rows, inputs], the shared expert, what is beside it."""
    choices = mixture.num_experts + mixture.num_idle
    yield from projection("router", choices, hidden_size, bias=mixture.router_bias)
    if mixture.correction:
        yield Parameter("correction", (choices,), "bias", "")
    yield from _expert_parameters(mixture, mixture.latent_size or hidden_size)
    if mixture.shared is not None:
        yield from mlp_parameters(mixture.shared, hidden_size, "shared.")
    if mixture.shared_gate:
        yield from projection("shared_gate", 1, hidden_size)
    if mixture.apart:
        yield Parameter("router_scale", (hidden_size,), "norm", "")
        yield Parameter("expert_scale", (mixture.num_experts,), "norm", "")
        for part in ("experts_norm", "experts_post_norm", "shared_post_norm"):
            yield from norm(part, "rms", hidden_size)
    if mixture.latent_size is not None:
        yield from projection("latent_down", mixture.latent_size, hidden_size)
        yield from projection("latent_up", hidden_size, mixture.latent_size)
        if mixture.latent_norm:
            yield from norm("latent_norm", "rms", mixture.latent_size)


def _expert_parameters(mixture: Mixture, inner_size: int) -> Iterator[Parameter]:
    expert, count = mixture.expert, len(mixture.held_experts)
    up: Rows = (("gate", expert.size), ("up", expert.size)) if expert.gated else (("up", expert.size),)
    for parameter in projection("experts.up", up * count, inner_size, bias=expert.bias, split="outputs"):
        yield _of_experts(mixture, parameter)
    down: Rows = (("down", inner_size),) * count
    for parameter in projection("experts.down", down, expert.size, bias=expert.bias, split="inputs"):
        yield _of_experts(mixture, parameter)


def _of_experts(mixture: Mixture, parameter: Parameter) -> Parameter:
    """Return the parameter as ranks divide it that have whole experts, where they do."""
    if not mixture.whole_experts:
        return parameter
    return replace(parameter, split="experts", num_experts=len(mixture.held_experts))

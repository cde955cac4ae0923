"""The MLP's parameters: gate and up as one matrix, and down."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan_engine.description.feed_forward import Mlp
from kvplan_engine.description.parameters.parameter import Parameter, Rows, projection


def mlp_parameters(mlp: Mlp, hidden_size: int, prefix: str = "") -> Iterator[Parameter]:
    """Parameters of one MLP. prefix: before the parts' names, for an MLP inside of another part ("shared.")."""
    rows: Rows = (("gate", mlp.size), ("up", mlp.size)) if mlp.gated else (("up", mlp.size),)
    yield from projection(f"{prefix}up", rows, hidden_size, bias=mlp.bias, split="outputs")
    yield from projection(f"{prefix}down", hidden_size, mlp.size, bias=mlp.bias, split="inputs")
    if mlp.activation == "xielu":  # its two slopes are learned
        yield Parameter(f"{prefix}activation.alpha_p", (1,), "bias", "")
        yield Parameter(f"{prefix}activation.alpha_n", (1,), "bias", "")

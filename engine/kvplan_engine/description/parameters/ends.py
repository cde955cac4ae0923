"""The parameters of joined inputs, of layers' own inputs, and of what ends a layer."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.parameters.parameter import Parameter, norm, projection


def layer_input_parameters(model: ModelDescription) -> Iterator[Parameter]:
    """The second embedding, its projection from the first and the norm of each layer's share."""
    inputs = model.layer_inputs
    if inputs is None:
        return
    columns = model.num_layers * inputs.size
    yield from projection("layer_inputs.embedding", inputs.rows, columns)
    yield from projection("layer_inputs.projection", columns, model.hidden_size)
    yield from norm("layer_inputs.norm", model.norm.kind, inputs.size)


def joined_parameters(model: ModelDescription) -> Iterator[Parameter]:
    """The norms of both inputs of multi-token prediction, and the projection [hidden, 2 hidden] of both."""
    for part in ("joined.embedding_norm", "joined.hidden_norm"):
        yield from norm(part, model.norm.kind, model.hidden_size)
    yield from projection("joined.projection", model.hidden_size, 2 * model.hidden_size)


def layer_end_parameters(layer: Layer, hidden_size: int) -> Iterator[Parameter]:
    """Gate, projection and norm of the layer's own input, and the factor."""
    if layer.end is None:
        return
    if layer.end.input_size:
        yield from projection("input_gate", layer.end.input_size, hidden_size)
        yield from projection("input_output", hidden_size, layer.end.input_size)
        yield from norm("input_norm", layer.norms.kind, hidden_size)
    yield Parameter("layer_scale", (1,), "norm", "")

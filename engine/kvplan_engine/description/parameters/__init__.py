"""Every parameter of a model, from its description alone: names of our own, shapes, what each is stacked of.

``checkpoints/parameters`` finds the tensors of a checkpoint for them. A part that no file here handles is refused by
name (TypeError).

    parameter   Parameter, and the shapes that parts are made of
    attention   attention: queries, keys and values as one matrix, norms of heads, the output projection
    latent      latent and compressed attention, and their index
    state       state spaces, linear attention, short convolutions
    cross       attention over an encoder's outputs
    mlp         the MLP: gate and up as one matrix, and down
    mixture     a mixture of experts: the router, all experts' matrices below each other, the shared expert
    ends        joined inputs, layers' own inputs, and what ends a layer
    norms       a layer's norms, wherever they stand
    model       all of them, layer by layer, and what stands around the layers
"""

from kvplan_engine.description.parameters.model import layer_parameters, model_parameters, num_parameters
from kvplan_engine.description.parameters.parameter import Kind, Parameter

__all__ = ["Kind", "Parameter", "layer_parameters", "model_parameters", "num_parameters"]

"""Every parameter of a model, from its description alone: names of our own, shapes, what each is stacked of.

``checkpoints/parameters`` finds the tensors of a checkpoint for them. A part that no file here handles is refused by
name (TypeError).

    parameter     Parameter, and the shapes that parts are made of
    mixers        attention (queries, keys and values as one matrix), latent and compressed attention and their index,
                  attention over an encoder's outputs, states
    model         the MLP, a mixture of experts; all of them, layer by layer, with norms, joined inputs and what ends a
                  layer; what stands around them
"""

from kvplan_engine.description.parameters.model import layer_parameters, model_parameters, num_parameters
from kvplan_engine.description.parameters.parameter import Kind, Parameter

__all__ = ["Kind", "Parameter", "layer_parameters", "model_parameters", "num_parameters"]

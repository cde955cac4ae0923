"""Layers for multi-token prediction (MTP) that the engine runs: a row for each family, as vLLM 0.33.0 has it.

A layer is like the model's last one, between two norms with a projection in front (``description.model.Joined``) and a
norm behind; embedding and head are the model's, though some checkpoints repeat them. vLLM: ``mimo_mtp.py``,
``deepseek_mtp.py``, ``glm4_moe_mtp.py``, ``glm4_moe_lite_mtp.py``, ``hy_v3_mtp.py`` in vllm/model_executor/models, and
vllm/models/deepseek_v32/nvidia/mtp.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import Joined, ModelDescription
from kvplan_engine.errors import EngineError

_AS_DEEPSEEK = Joined()


@dataclass(frozen=True, slots=True)
class MultiToken:
    """What a family calls an MTP layer and its parts ("{}": the layers before it), and how its inputs are joined."""

    layer: str = "model.layers.{}"
    embedding_norm: str = "enorm"
    hidden_norm: str = "hnorm"
    projection: str = "eh_proj"
    final_norm: str = "shared_head.norm"
    joined: Joined = _AS_DEEPSEEK


_GLM = MultiToken(joined=Joined(hands_on_normed=False))
_ROWS = {
    "DeepseekV3ForCausalLM": MultiToken(),
    "DeepseekV32ForCausalLM": MultiToken(),
    "Glm4MoeForCausalLM": _GLM,
    "Glm4MoeLiteForCausalLM": _GLM,
    "HYV3ForCausalLM": MultiToken(final_norm="final_layernorm"),
    "MiMoForCausalLM": MultiToken(
        layer="model.mtp_layers.0",
        embedding_norm="token_layernorm",
        hidden_norm="hidden_layernorm",
        projection="input_proj",
        final_norm="final_layernorm",
        joined=Joined(hidden_first=True),
    ),
}


def multi_token_model(model: ModelDescription) -> ModelDescription:
    """The MTP layer of ``model`` as a model whose embedding and head are that one's.

    EngineError where the config names none, or several, or where the engine does not run the family's.
    """
    if not model.num_multi_token:
        raise EngineError(
            f"the config of this {model.architecture} names no layer for multi-token prediction (MTP).",
            hint="use method 'ngram' or 'draft_model'",
        )
    row = _ROWS.get(model.architecture)
    if row is None or model.num_multi_token > 1:
        number = "" if row is None else f"{model.num_multi_token} of "
        raise EngineError(
            f"the engine does not run {number}the layers for multi-token prediction of {model.architecture}.",
            hint="it runs one of " + ", ".join(_ROWS) + "; use method 'ngram' or 'draft_model'",
        )
    joined = replace(row.joined, behind=model.num_layers)
    return replace(model, layers=model.layers[-1:], num_multi_token=0, joined=joined)


def multi_token_names(model: ModelDescription, names: TensorNames | None) -> TensorNames | None:
    """What the tensors of an MTP layer are called. names: of the family's other layers."""
    if names is None or model.joined is None:
        return names
    row = _ROWS[model.architecture]
    layer = row.layer.format(model.joined.behind)
    own = ("embedding_norm", "hidden_norm", "projection")
    inside = {f"joined.{part}": f"{layer}.{getattr(row, part)}" for part in own}
    final_norm = f"{layer}.{row.final_norm}"
    return replace(names, layer=layer, final_norm=final_norm, inside={**names.inside, **inside})

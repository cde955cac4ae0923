"""Granite 3 with experts: multipliers of embedding, attention, residual stream and logits; experts in one tensor."""

from __future__ import annotations

from kvplan_engine.checkpoints.families.common import Config, attention, mlp, norms
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.parts import decoder, shared_mlp, whole
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.model import ModelDescription


def read_granite_moe(config: Config) -> ModelDescription:
    """transformers: GraniteMoeModel and GraniteMoeSharedModel."""
    mixture = Mixture(
        whole(config, "num_local_experts"),
        whole(config, "num_experts_per_tok"),
        mlp(config, bias=False),
        scoring="softmax_of_top",
        normalised=False,
        shared=shared_mlp(config, whole(config, "shared_intermediate_size", default=0)),
    )
    mixer = attention(config, scale=float(config.get("attention_multiplier") or 1.0))
    return decoder(
        config,
        norms(config),
        mixer,
        mixture,
        residual_scale=float(config.get("residual_multiplier") or 1.0),
        embedding_scale=float(config.get("embedding_multiplier") or 1.0),
        logits_scale=1.0 / float(config.get("logits_scaling") or 1.0),
    )


GRANITE_MOE_NAMES = TensorNames(
    inside={
        "router": "block_sparse_moe.router.layer",
        "experts.up": "block_sparse_moe.input_linear",
        "experts.down": "block_sparse_moe.output_linear",
        "shared.up": "shared_mlp.input_linear",
        "shared.down": "shared_mlp.output_linear",
    }
)

FAMILIES = (
    Family(
        ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
        ("granitemoe", "granitemoeshared"),
        read_granite_moe,
        GRANITE_MOE_NAMES,
    ),
)

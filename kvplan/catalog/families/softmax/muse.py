"""Muse Spark: windows, gated attention, experts in a latent, a gate of the residual stream behind each block."""

from __future__ import annotations

from dataclasses import replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body, decoder_body, read_sizes, softmax_attention
from kvplan.catalog.families.softmax.mixtures import after_dense_ones
from kvplan.catalog.families.softmax.windows import muse
from kvplan.catalog.parts import AttentionTraits, MoeTraits, feed_forward, mixture, norm, norms
from kvplan.catalog.spec import FeedForward, LayerSpec
from kvplan.catalog.tensors import Tensor

_MIXTURE = MoeTraits(latent_size=1, latent_names=("pre_expert_proj", "post_expert_proj"), latent_norm="pre_expert_norm")


def read_muse_spark(view: ConfigView) -> Body:
    """transformers: MuseSparkTextModel. Norms of queries, keys and attention's output have no weights."""
    if view.config.get("num_shared_experts"):
        raise view.reject("num_shared_experts", "0 (vLLM serves none)")
    sizes = read_sizes(view)
    traits = AttentionTraits(output_gate="separate")
    windows = muse(view, sizes.layers)
    mixers = {window: softmax_attention(sizes, traits, window=window) for window in set(windows)}
    gates = tuple(Tensor(f"residual_gate{index}", (sizes.hidden,), "state") for index in range(2))
    around = norms(3, sizes.hidden) + gates
    dense, sparse = feed_forward(sizes.hidden, view.integer("intermediate_size")), _mixture(view, sizes.hidden)
    kinds = after_dense_ones(view, sizes.layers)
    layers = [
        LayerSpec(mixers[window], None, sparse if is_sparse else dense, around)
        for window, is_sparse in zip(windows, kinds, strict=True)
    ]
    return decoder_body(view, sizes, layers, tied=None)


def _mixture(view: ConfigView, hidden: int) -> FeedForward:
    """Each expert's output has a norm, whose weight all share."""
    inner = view.integer("moe_hidden_size", default=4096)
    part = mixture(
        hidden,
        view.integer("num_local_experts"),
        view.integer("num_experts_per_tok"),
        view.integer("moe_intermediate_size"),
        traits=replace(_MIXTURE, latent_size=inner),
    )
    return replace(part, tensors=part.tensors + norm("mlp.post_expert_norm", inner))

"""Decoders with a mixture of experts in some or all layers, and softmax attention everywhere."""

from __future__ import annotations

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families import windows
from kvplan.catalog.families.body import Body, read_sizes
from kvplan.catalog.families.plain import PlainFamily, assemble
from kvplan.catalog.parts import MoeTraits, mixture


def read_mixtral(view: ConfigView) -> Body:
    """Mixtral: eight or so gated experts per layer, two per token, no shared expert."""
    sizes = read_sizes(view)
    part = mixture(
        sizes.hidden,
        view.integer("num_local_experts"),
        view.integer("num_experts_per_tok"),
        view.integer("intermediate_size"),
        traits=MoeTraits(name="block_sparse_moe"),
    )
    return assemble(view, PlainFamily(windows=windows.every_layer), sizes, [part] * sizes.layers)

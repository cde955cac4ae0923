"""Decoders with a mixture of experts in some or all layers, and softmax attention everywhere.

Each row of ``profiles/families.json`` is a plain family plus three rules: which layers are sparse, how large the
experts are, and what the shared expert adds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body, Sizes, read_sizes
from kvplan.catalog.families.softmax.plain import (
    PlainFamily,
    Trait,
    assemble,
    family_rows,
    plain_family,
    read_trait,
    typed_row,
)
from kvplan.catalog.parts import MoeTraits, feed_forward, mixture
from kvplan.catalog.spec import FeedForward

EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
TOP_K_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_k", "moe_topk", "num_selected_experts")

PLAIN_EXPERTS = MoeTraits()
SparseRule = Callable[[ConfigView, int], list[bool]]


def every_layer_sparse(view: ConfigView, num_layers: int) -> list[bool]:
    return [True] * num_layers


def after_dense_ones(view: ConfigView, num_layers: int) -> list[bool]:
    """DeepSeek's rule: ``first_k_dense_replace`` dense layers, then every ``moe_layer_freq``-th is sparse."""
    types = view.texts("mlp_layer_types")
    if types is not None:
        return _from_types(view, types, num_layers)
    if isinstance(view.config.get("moe_layer_freq"), list):
        return [bool(value) for value in view.per_layer("moe_layer_freq", num_layers, minimum=0)]
    first = view.integer("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", default=0, minimum=0)
    step = view.integer("moe_layer_freq", "moe_layer_interval", default=1)
    return [index >= first and index % step == 0 for index in range(num_layers)]


def named_layers(view: ConfigView, num_layers: int) -> list[bool]:
    """``mlp_layer_types``, which is needed: vLLM's class and transformers' take different ones where it is absent."""
    types = view.texts("mlp_layer_types")
    if types is None:
        raise view.reject("mlp_layer_types", f"dense or sparse for each of {num_layers} layers")
    return _from_types(view, types, num_layers)


def but_dense_ones(view: ConfigView, num_layers: int) -> list[bool]:
    """All but ``mlp_only_layers``, which is needed: vLLM's class and transformers' take different ones without it."""
    if view.integers("mlp_only_layers") is None:
        raise view.reject("mlp_only_layers", "the layers that are dense")
    return stepped(view, num_layers)


def after_first_layer(view: ConfigView, num_layers: int) -> list[bool]:
    """``mlp_layer_types``, or one dense layer and then sparse ones."""
    types = view.texts("mlp_layer_types")
    if types is not None:
        return _from_types(view, types, num_layers)
    if view.has("moe_layer_freq") or view.has("first_k_dense_replace"):
        return after_dense_ones(view, num_layers)
    return [index > 0 for index in range(num_layers)]


def _from_types(view: ConfigView, types: list[str], num_layers: int) -> list[bool]:
    if len(types) < num_layers or set(types) - {"dense", "sparse"}:
        raise view.reject("mlp_layer_types", f"dense or sparse for each of {num_layers} layers")
    return [kind == "sparse" for kind in types[:num_layers]]


def stepped(view: ConfigView, num_layers: int) -> list[bool]:
    """Qwen's rule: every ``decoder_sparse_step``-th layer but those in ``mlp_only_layers``."""
    dense = set(view.integers("mlp_only_layers") or [])
    step = view.integer("decoder_sparse_step", default=1)
    return [index not in dense and (index + 1) % step == 0 for index in range(num_layers)]


def interleaved(view: ConfigView, num_layers: int) -> list[bool]:
    """Llama 4's rule: every ``interleave_moe_layer_step``-th layer, or the listed ``moe_layers``."""
    listed = view.integers("moe_layers")
    if listed is not None:
        return [index in listed for index in range(num_layers)]
    step = view.integer("interleave_moe_layer_step", default=1)
    return [(index + 1) % step == 0 for index in range(num_layers)]


def ernie_range(view: ConfigView, num_layers: int) -> list[bool]:
    """ERNIE 4.5: from ``moe_layer_start_index`` to ``moe_layer_end_index``, every ``moe_layer_interval``-th layer."""
    first = view.integer("moe_layer_start_index", default=1, minimum=0)
    end = view.config.get("moe_layer_end_index")
    last = num_layers - 1 if end in (None, -1) else view.integer("moe_layer_end_index", minimum=0)
    step = view.integer("moe_layer_interval", default=1)
    return [(index + 1) % step == 0 and first <= index <= last for index in range(num_layers)]


@dataclass(frozen=True, slots=True)
class MixtureFamily:
    """How one family's mixture differs: keys are the config keys to look under, in order."""

    plain: PlainFamily
    sparse: SparseRule = every_layer_sparse
    expert_size: tuple[str, ...] = ("moe_intermediate_size", "intermediate_size")
    dense_size: tuple[str, ...] = ("intermediate_size",)
    shared_size: tuple[str, ...] = ()
    """Keys of the shared expert's whole size."""
    shared_size_default: int = 0
    shared_count: tuple[str, ...] = ()
    """Keys of a number of shared experts, each of the experts' size; where ``shared_size`` is not in the config."""
    shared_default: int = 0
    shared_each: tuple[str, ...] = ()
    """Keys of the size of one shared expert where it is not the routed experts'."""
    shared_bias: Trait = False
    router_bias: Trait = False
    router_dtype: str = ""
    """Key of the router's dtype, where vLLM asks the config for it; ``traits`` say what it is without."""
    listed: tuple[str, ...] = ()
    """Keys that may have one number for each layer, the same for all."""
    traits: MoeTraits = PLAIN_EXPERTS


def shared_intermediate(view: ConfigView, family: MixtureFamily, expert_size: int) -> int:
    """Inner size of all shared experts together; 0 when there are none."""
    if family.shared_size and not (family.shared_count and not any(map(view.has, family.shared_size))):
        return view.integer(*family.shared_size, default=family.shared_size_default, minimum=0)
    if family.shared_each:
        expert_size = view.integer(*family.shared_each, default=expert_size)
    if family.shared_count:
        return expert_size * view.integer(*family.shared_count, default=family.shared_default, minimum=0)
    return expert_size * family.shared_default


def read_feed_forwards(view: ConfigView, family: MixtureFamily, sizes: Sizes) -> list[FeedForward]:
    """One feed-forward per layer: the mixture where the family's rule says so, else the dense one."""
    sparse = family.sparse(view, sizes.layers)
    expert_size = view.integer(*family.expert_size)
    float32 = family.traits.float32_router
    if family.router_dtype and view.has(family.router_dtype):
        float32 = view.text(family.router_dtype) in ("fp32", "float32")
    traits = replace(
        family.traits,
        router_bias=read_trait(view, family.router_bias),
        shared_bias=read_trait(view, family.shared_bias),
        float32_router=float32,
    )
    routed = mixture(
        sizes.hidden,
        view.integer(*EXPERT_KEYS),
        view.integer(*TOP_K_KEYS),
        expert_size,
        shared_intermediate=shared_intermediate(view, family, expert_size),
        traits=traits,
    )
    if all(sparse):
        return [routed] * sizes.layers
    plain = family.plain
    bias = read_trait(view, plain.mlp_bias)
    dense = feed_forward(sizes.hidden, view.integer(*family.dense_size), gated=plain.gated, bias=bias)
    return [routed if is_sparse else dense for is_sparse in sparse]


def mixture_family(row: Mapping[str, Any]) -> MixtureFamily:
    """Return what a row states. FactError for what no family has."""
    parts = {
        "plain": plain_family(row.get("plain", {})),
        "traits": MoeTraits(**typed_row(MoeTraits, row.get("traits", {}), {})),
    }
    return MixtureFamily(**typed_row(MixtureFamily, row, {"sparse": sys.modules[__name__]}) | parts)


FAMILIES = {name: mixture_family(row) for name, row in family_rows("mixtures").items()}


def read_mixture(view: ConfigView, family: MixtureFamily) -> Body:
    """A body with the family's attention and its mixture of experts."""
    sizes = read_sizes(view, head_default=family.plain.head_default)
    view = view.changed({key: _same_for_all(view, key, sizes.layers) for key in family.listed if view.has(key)})
    return assemble(view, family.plain, sizes, read_feed_forwards(view, family, sizes))


def _same_for_all(view: ConfigView, key: str, num_layers: int) -> int:
    values = set(view.per_layer(key, num_layers, minimum=0))
    if len(values) != 1:
        raise view.reject(key, "the same number for all layers")
    return values.pop()

"""Domyn Edge: heads of each layer's own size, windows and positions layer by layer."""

from __future__ import annotations

from dataclasses import replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body, Sizes, decoder_body, read_rope, read_sizes, softmax_attention
from kvplan.catalog.parts import FULL, Window, feed_forward, norm, norms, sliding
from kvplan.catalog.spec import FeedForward, LayerSpec


def read_domyn_edge(view: ConfigView) -> Body:
    """Read it as vLLM does (vllm/model_executor/models/domyn_edge.py). Queries' norms have no weights."""
    sizes = read_sizes(view, head_default=1)
    heads, windows = _head_sizes(view, sizes.layers), _windows(view, sizes.layers)
    turns = view.texts("position_layers")
    if turns is None or len(turns) != sizes.layers or set(turns) - {"rope", "nope"}:
        raise view.reject("position_layers", f"rope or nope for each of {sizes.layers} layers")
    part = feed_forward(sizes.hidden, view.integer("intermediate_size"), name="feedforward")
    kinds = {each: _layer(sizes, part, *each) for each in set(zip(heads, windows, strict=True))}
    layers = [kinds[each] for each in zip(heads, windows, strict=True)]
    rotary = next((head for head, kind in zip(heads, turns, strict=True) if kind == "rope"), None)
    body = decoder_body(view, sizes, layers, tied=True, rotary=False)
    return body if rotary is None else replace(body, rope=read_rope(view, rotary))


def _layer(sizes: Sizes, part: FeedForward, head: int, window: Window) -> LayerSpec:
    mixer = softmax_attention(replace(sizes, head=head), window=window)
    return LayerSpec(mixer, None, part, norms(4, sizes.hidden) + norm("attention.k_norm", head))


def _head_sizes(view: ConfigView, num_layers: int) -> list[int]:
    """``head_sizes``, or transformers 5's ``per_layer_config``: an object for each layer that differs from the rest."""
    if view.has("head_sizes"):
        return view.per_layer("head_sizes", num_layers)
    own = view.section("per_layer_config")
    if own is None:
        raise view.reject("head_sizes", f"a size for each of {num_layers} layers")
    entries = [own.section(str(index)) for index in range(num_layers)]
    common = view.optional_integer("head_dim")
    return [view.integer("head_dim") if each is None else each.integer("head_dim", default=common) for each in entries]


def _windows(view: ConfigView, num_layers: int) -> list[Window]:
    """Tokens to the left of a token, which vLLM counts among those of its window; below 1 for all."""
    pairs = view.items("window_sizes")
    if pairs is None or len(pairs) != num_layers:
        raise view.reject("window_sizes", f"a pair for each of {num_layers} layers")
    found = []
    for pair in pairs:
        left = pair[0] if isinstance(pair, list) and pair else None
        if isinstance(left, bool) or not isinstance(left, int):
            raise view.reject("window_sizes", "pairs of whole numbers")
        found.append(sliding(left + 1) if left > 0 else FULL)
    return found

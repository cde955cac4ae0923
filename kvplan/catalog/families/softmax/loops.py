"""Decoders that go through some of their layers again: weights once, keys and values of each pass.

A pass is a layer of its own here, whose weights are those of the layer that it repeats (``LayerSpec.repeats``).
"""

from __future__ import annotations

from dataclasses import replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body, Sizes, decoder_body, layer_types, read_sizes, softmax_attention
from kvplan.catalog.families.softmax.plain import LLAMA, assemble, dense_feed_forward
from kvplan.catalog.parts import FULL, AttentionTraits, feed_forward, linear, sliding
from kvplan.catalog.spec import LayerSpec, SoftmaxAttention
from kvplan.catalog.tensors import Tensor

_MOST_PASSES = 64


def again(layer: LayerSpec) -> LayerSpec:
    """Another pass through ``layer``: a cache of its own, no weights."""
    mixer, part = layer.mixer, layer.feed_forward
    return LayerSpec(
        mixer=None if mixer is None else replace(mixer, tensors=()),
        feed_forward=None if part is None else replace(part, tensors=()),
        repeats=layer.all_tensors,
    )


def _assume_passes(view: ConfigView, layers: int, total: int) -> None:
    view.assume(f"{layers} layers are held and gone through again: {total} passes, each counted as a layer.")


def read_loop_coder(view: ConfigView) -> Body:
    """IQuest Loop Coder: all layers again ``loop_num`` times, with windows (vllm: models/iquest_loopcoder.py).

    A gate of each head, by its query alone, weighs the window of a later pass against the whole cache of the first.
    """
    if view.has("dual_chunk_attention_config"):
        raise view.reject("dual_chunk_attention_config", "none (what its layers keep then is not known)")
    sizes = read_sizes(view.changed({"head_dim": None}))
    family = replace(LLAMA, qkv_bias=False, output_bias=False, mlp_bias=False, max_positions=131072)
    body = assemble(view, family, sizes, [dense_feed_forward(view, family, sizes)] * sizes.layers)
    loops = view.integer("loop_num", default=2, maximum=_MOST_PASSES)
    window = sliding(view.integer("loop_window_size", default=64))
    (layer,) = set(body.layers)
    assert isinstance(layer.mixer, SoftmaxAttention)
    gate = linear("gate_projections.gate_proj", sizes.heads, sizes.head, "column", bias=True)
    first = replace(layer, tensors=layer.tensors + gate)
    windowed = replace(layer.mixer, window_kind=window.kind, window_tokens=window.tokens)
    later = again(replace(first, mixer=windowed))
    if loops > 1:
        _assume_passes(view, sizes.layers, loops * sizes.layers)
        view.assume("Passes after the first also attend to the first one's cache, which speeds leave out.")
    return replace(body, layers=(first,) * sizes.layers + (later,) * ((loops - 1) * sizes.layers))


def read_nanbeige(view: ConfigView) -> Body:
    """Nanbeige 4.2: Llama whose layers are all gone through ``num_loops`` times, with a cache for each pass.

    NanbeigeLoopAttention of the published code has an attention of each pass, which vLLM's backend for transformers'
    classes finds (github.com/vllm-project/vllm/pull/56071). What the released models leave off is refused.
    """
    for key in _UNKNOWN_OF_NANBEIGE:
        if view.config.get(key):
            raise view.reject(key, "off, as in the released models (what it adds is not known)")
    loops = view.integer("num_loops", default=1, maximum=_MOST_PASSES)
    sizes = read_sizes(view)
    family = replace(LLAMA, max_positions=262144)
    body = assemble(view, family, sizes, [dense_feed_forward(view, family, sizes)] * sizes.layers)
    if loops > 1:
        _assume_passes(view, sizes.layers, loops * sizes.layers)
    (layer,) = set(body.layers)
    return replace(body, layers=body.layers + (again(layer),) * ((loops - 1) * sizes.layers))


_UNKNOWN_OF_NANBEIGE = (
    *("enable_hyper_connection", "enable_depth_attention", "enable_double_loop_split", "loop_share_kv"),
    *("loop_loss_weights", "emb_neighbor_num", "qk_layernorm", "attention_bias", "mlp_bias"),
)


def read_hrm_text(view: ConfigView) -> Body:
    """HRM-Text: two stacks, the fast one ``L_cycles`` times and then the slow one, ``H_cycles`` times over.

    transformers 5 counts all passes in ``num_hidden_layers`` and the layers of a stack in ``num_layers_per_stack``.
    """
    depth = view.layers("num_layers_per_stack", "num_hidden_layers")
    sizes = read_sizes(view.changed({"num_key_value_heads": None, "num_hidden_layers": depth}), head_default=128)
    if view.flag("attention_bias", default=False):
        raise view.reject("attention_bias", "false (which of its matrices have one then is not known)")
    slow = view.integer("H_cycles", default=2, maximum=_MOST_PASSES)
    fast = view.integer("L_cycles", default=3, maximum=_MOST_PASSES)
    mixer = softmax_attention(sizes, AttentionTraits(output_gate="separate"))
    layer = LayerSpec(mixer, None, dense_feed_forward(view, LLAMA, sizes))
    stacks, passes = 2 * depth, depth * slow * (fast + 1)
    _assume_passes(view, stacks, passes)
    layers = (layer,) * stacks + (again(layer),) * (passes - stacks)
    start = Tensor("z_L_init", (sizes.hidden,), "state")
    return decoder_body(view, sizes, layers, final_norm=False, max_positions=2048, further=(start,))


def read_dory(view: ConfigView) -> Body:
    """Dory: blocks of attention or of a feed-forward; those in the middle ``n_recurrent_loops`` times over.

    vLLM's DoryConfig and transformers' take other defaults where the config does not say how many blocks are where.
    """
    sizes = read_sizes(view)
    types = layer_types(view, sizes.layers)
    if types is None or "mlp" not in types or set(types) - {"mlp", "full_attention", "sliding_attention"}:
        raise view.reject("layer_types", "full_attention, sliding_attention or mlp for each block")
    kinds = _dory_blocks(view, sizes, set(types))
    loops = view.integer("n_recurrent_loops", maximum=_MOST_PASSES)
    first, last = view.integer("n_input_layers", minimum=0), view.integer("n_output_layers", minimum=0)
    middle = view.integer("n_recurrent_layers", default=max(sizes.layers - first - last, 0), minimum=0)
    if first + middle + last != sizes.layers:
        raise view.reject("n_recurrent_layers", f"as many as are left of {sizes.layers}")
    mode = view.text("recurrent_kv_cache_mode", default="per_loop")
    if mode not in ("per_loop", "last_loop"):
        raise view.reject("recurrent_kv_cache_mode", "per_loop or last_loop")
    blocks = [kinds[kind] for kind in types]
    passes = [again(kinds[kind]) for kind in types[first : first + middle]] * (loops - 1)
    if mode == "last_loop":
        indices = list(range(first, first + middle)) * (loops - 1)
        passes = [_overwriting(layer, index) for layer, index in zip(passes, indices, strict=True)]
    if passes:
        _assume_passes(view, sizes.layers, sizes.layers + len(passes))
    scale = Tensor("lm_head.logit_scale", (sizes.vocab,), "norm")
    return decoder_body(
        view, sizes, (*blocks, *passes), tied=None, final_norm=False, max_positions=8192, further=(scale,)
    )


def _dory_blocks(view: ConfigView, sizes: Sizes, kinds: set[str]) -> dict[str, LayerSpec]:
    """A block of each kind: scales beside its matrices in place of norms (vllm: models/dory.py)."""
    inner = view.integer("intermediate_size")
    rate = Tensor("alpha", (sizes.hidden,), "norm")
    scales = tuple(Tensor(f"mixer.{name}", (sizes.heads * sizes.head,), "norm") for name in ("sqk", "s_gate"))
    inner_scales = tuple(Tensor(f"mixer.{name}", (inner,), "norm") for name in ("suv_gate", "suv_up"))
    found = {"mlp": LayerSpec(None, None, feed_forward(sizes.hidden, inner, name="mixer"), (rate, *inner_scales))}
    traits = AttentionTraits(output_gate="separate", name="mixer")
    for kind in kinds - {"mlp"}:
        window = FULL if kind == "full_attention" else sliding(view.integer("sliding_window"))
        found[kind] = LayerSpec(softmax_attention(sizes, traits, window=window), None, None, (rate, *scales))
    return found


def _overwriting(layer: LayerSpec, index: int) -> LayerSpec:
    """A pass that writes into the cache of the layer ``index``, which it repeats."""
    mixer = layer.mixer
    if not isinstance(mixer, SoftmaxAttention):
        return layer
    return replace(layer, mixer=replace(mixer, kv_shared_with=index))

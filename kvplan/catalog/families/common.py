"""What every reader of a family returns, and what most of them read the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.parts import FULL, AttentionTraits, Window, attention, chunked, linear, norms, outside, sliding
from kvplan.catalog.registry import Body as Body
from kvplan.catalog.spec import (
    ExtraModule,
    FeedForward,
    LayerSpec,
    Mixer,
    RopeSpec,
    SoftmaxAttention,
    SparseIndexer,
)
from kvplan.catalog.tensors import Tensor, count_elements


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that nearly every decoder's config states."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    vocab: int


HIDDEN_KEYS = ("hidden_size", "n_embd", "d_model")
LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
POSITION_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "model_max_length")


def read_sizes(view: ConfigView, *, head_default: int | None = None) -> Sizes:
    """Hidden size, layers, heads; KV heads default to the query heads, the head size to hidden / heads."""
    hidden = view.integer(*HIDDEN_KEYS)
    heads = view.integer(*HEAD_KEYS)
    kv_heads = view.integer("num_key_value_heads", "num_kv_heads", default=heads)
    if kv_heads > heads or heads % kv_heads:
        raise view.reject("num_key_value_heads", f"a divisor of the {heads} query heads")
    head = view.optional_integer("head_dim") or head_default
    if head is None:
        if hidden % heads:
            raise view.reject("hidden_size", f"a multiple of the {heads} heads (there is no head_dim)")
        head = hidden // heads
    return Sizes(hidden, view.layers(*LAYER_KEYS), heads, kv_heads, head, view.integer("vocab_size"))


def read_tied(view: ConfigView, *, default: bool) -> bool:
    return view.flag("tie_word_embeddings", "tie_embeddings", default=default)


def read_max_positions(view: ConfigView, *, default: int | None = None) -> int | None:
    """Tokens; where the config is silent ``default``, which the family's class in transformers has."""
    found = view.optional_integer(*POSITION_KEYS)
    if found is None and default is not None:
        view.assume(f"'max_position_embeddings' is not in the config: {default:,}, the default of this architecture.")
        return default
    return found


def read_rope(
    view: ConfigView, head_size: int, *, default_share: float = 1.0, default_theta: float = 10000.0
) -> RopeSpec:
    """Rotary positions from the old keys (rope_theta, rope_scaling) or the new object (rope_parameters).

    default_share: of a head, where the config says neither a share nor, as ``rotary_dim``, a number of elements.
    """
    parameters = view.section("rope_parameters")
    scaling = view.section("rope_scaling") or parameters
    source = parameters if parameters is not None and parameters.has("rope_theta") else view
    theta = source.number("rope_theta", "rotary_emb_base", default=default_theta)
    section = view if parameters is None or not parameters.has("partial_rotary_factor") else parameters
    share = section.number("partial_rotary_factor", "rotary_pct", default=default_share)
    rotary = min(head_size, view.integer("rotary_dim", default=max(int(head_size * share), 1)))
    if scaling is None:
        return RopeSpec(theta, rotary)
    kind = scaling.text("rope_type", "type", default="default")
    if kind == "default":
        return RopeSpec(theta, rotary)
    return RopeSpec(
        theta=theta,
        rotary_size=rotary,
        scaling=kind,
        factor=scaling.number("factor", default=1.0),
        original_max_position_embeddings=scaling.optional_integer("original_max_position_embeddings"),
    )


_LAYER_TYPES = {"full_attention", "global", "attention", "full"}


def windows_of_types(view: ConfigView, types: list[str], window_tokens: int | None) -> list[Window]:
    """One window per entry of ``layer_types``. A sliding entry without a window size is full attention."""
    found = []
    for kind in types:
        if kind in _LAYER_TYPES:
            found.append(FULL)
        elif kind in ("sliding_attention", "sliding", "local", "sliding_window"):
            found.append(sliding(window_tokens) if window_tokens else FULL)
        elif kind == "chunked_attention":
            found.append(chunked(window_tokens) if window_tokens else FULL)
        else:
            raise view.reject("layer_types", "a list of full_attention, sliding_attention and chunked_attention")
    return found


def layer_types(view: ConfigView, num_layers: int) -> list[str] | None:
    """The published ``layer_types``, one per layer, or None when the config has none."""
    types = view.texts("layer_types")
    if types is not None and len(types) != num_layers:
        raise view.reject("layer_types", f"one entry for each of {num_layers} layers")
    return types


def softmax_attention(
    sizes: Sizes,
    traits: AttentionTraits = AttentionTraits(),
    *,
    window: Window = FULL,
    head_v: int | None = None,
    kv_shared_with: int | None = None,
    indexer: SparseIndexer | None = None,
) -> SoftmaxAttention:
    """An attention with the heads that the config states."""
    return attention(
        *(sizes.hidden, sizes.heads, sizes.kv_heads, sizes.head),
        head_v=head_v,
        window=window,
        traits=traits,
        kv_shared_with=kv_shared_with,
        indexer=indexer,
    )


def stacked(
    sizes: Sizes, mixers: Sequence[Mixer], parts: Sequence[FeedForward], tensors: tuple[Tensor, ...] | None = None
) -> list[LayerSpec]:
    """A layer of each mixer with its feed-forward; ``tensors``: what stands beside both, by default two norms."""
    beside = norms(2, sizes.hidden) if tensors is None else tensors
    return [LayerSpec(mixer, None, part, beside) for mixer, part in zip(mixers, parts, strict=True)]


def decoder_body(
    view: ConfigView,
    sizes: Sizes,
    layers: Sequence[LayerSpec],
    *,
    tied: bool | None = False,
    final_norm: bool = True,
    rotary: bool = True,
    rotary_share: float = 1.0,
    max_positions: int | None = None,
    further: tuple[Tensor, ...] = (),
    extras: tuple[ExtraModule, ...] = (),
    residual_streams: int = 1,
) -> Body:
    """The layers between an embedding, a final norm and a head: the shared end of most readers.

    tied: where the config is silent; None: never, whatever it says. further: what else stands outside the layers.
    """
    is_tied = tied is not None and read_tied(view, default=tied)
    return Body(
        layers=tuple(layers),
        tensors=outside(sizes.hidden, sizes.vocab, tied=is_tied, final_norm=final_norm) + further,
        hidden_size=sizes.hidden,
        vocab_size=sizes.vocab,
        tied=is_tied,
        max_position_embeddings=read_max_positions(view, default=max_positions),
        rope=read_rope(view, sizes.head, default_share=rotary_share) if rotary else None,
        extras=extras,
        residual_streams=residual_streams,
    )


MULTI_TOKEN_KEYS = ("num_nextn_predict_layers", "num_mtp_modules")


def multi_token_layers(
    view: ConfigView,
    layer: LayerSpec,
    hidden: int,
    *,
    keys: tuple[str, ...] = MULTI_TOKEN_KEYS,
    joint: tuple[Tensor, ...] | None = None,
    default: int = 0,
) -> tuple[ExtraModule, ...]:
    """DeepSeek V3's multi-token-prediction layers: a layer like the last one, three norms, a projection of both inputs.

    The embedding and the head are those of the model, though the checkpoint repeats them. ``keys``: how the config
    calls their number, ``default``: where it is silent; ``joint``: how embedding and hidden state are joined, by
    default one matrix over both.
    """
    return repeated_layer(view.integer(*keys, default=default, minimum=0, maximum=64), layer, hidden, joint)


def repeated_layer(
    count: int, layer: LayerSpec, hidden: int, joint: tuple[Tensor, ...] | None = None
) -> tuple[ExtraModule, ...]:
    """``count`` such layers that are alike; none where it is 0."""
    if not count:
        return ()
    joint = linear("eh_proj", hidden, 2 * hidden) if joint is None else joint
    whole = replace(layer, tensors=layer.tensors + norms(3, hidden) + joint)
    tensors = whole.all_tensors
    return (ExtraModule("mtp", "multi_token_prediction", count * count_elements(tensors), count, tensors, whole),)

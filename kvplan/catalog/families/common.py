"""What every reader of a family returns, and what most of them read the same way."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.catalog.body import Body as Body
from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.parts import FULL, Window, chunked, sliding
from kvplan.catalog.spec import RopeSpec


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

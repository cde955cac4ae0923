"""Which layers of a plain decoder use a sliding window: each family's rule, for configs without layer_types."""

from __future__ import annotations

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import layer_types, windows_of_types
from kvplan.catalog.parts import FULL, Window, chunked, sliding


def _published(view: ConfigView, num_layers: int, tokens: int | None) -> list[Window] | None:
    types = layer_types(view, num_layers)
    return None if types is None else windows_of_types(view, types, tokens)


def no_window(view: ConfigView, num_layers: int) -> list[Window]:
    """Full attention everywhere; a ``sliding_window`` in the config is not read by this family."""
    return [FULL] * num_layers


def listed(view: ConfigView, num_layers: int) -> list[Window]:
    """``sliding_window`` on the layers that ``layer_types`` says; without it none (Mellum)."""
    return _published(view, num_layers, view.optional_integer("sliding_window")) or [FULL] * num_layers


def named(view: ConfigView, num_layers: int) -> list[Window]:
    """``sliding_window`` on the layers that ``layer_types`` says, which is needed: classes differ in what they take."""
    tokens = view.integer("sliding_window") if view.flag("use_sliding_window", default=True) else None
    published = _published(view, num_layers, tokens)
    if published is None:
        raise view.reject("layer_types", f"full_attention or sliding_attention for each of {num_layers} layers")
    return published


def every_layer(view: ConfigView, num_layers: int) -> list[Window]:
    """``sliding_window`` on all layers when it is set (Mistral, Phi-3, StarCoder2)."""
    tokens = view.optional_integer("sliding_window")
    published = _published(view, num_layers, tokens)
    return published or [sliding(tokens) if tokens else FULL] * num_layers


def mistral(view: ConfigView, num_layers: int) -> list[Window]:
    """Windows of ``every_layer``; a config that does not mention them has transformers' default of 4,096."""
    if not view.names("sliding_window") and layer_types(view, num_layers) is None:
        view.assume("'sliding_window' is not in the config: 4,096, the default of this architecture.")
        return [sliding(4096)] * num_layers
    return every_layer(view, num_layers)


def solar(view: ConfigView, num_layers: int) -> list[Window]:
    """Return ``every_layer``'s windows; a config that does not mention the window has its class's default of 2,047."""
    if not view.names("sliding_window"):
        view.assume("'sliding_window' is not in the config: 2,047, the default of this architecture.")
        return [sliding(2047)] * num_layers
    return every_layer(view, num_layers)


def when_used(view: ConfigView, num_layers: int) -> list[Window]:
    """Qwen 2 and 3: only with ``use_sliding_window``, and only from layer ``max_window_layers`` on."""
    if not view.flag("use_sliding_window", default=False):
        return [FULL] * num_layers
    tokens = view.optional_integer("sliding_window")
    published = _published(view, num_layers, tokens)
    if published is not None or tokens is None:
        return published or [FULL] * num_layers
    first = view.integer("max_window_layers", default=28, minimum=0)
    return [sliding(tokens) if index >= first else FULL for index in range(num_layers)]


def every_nth_full(view: ConfigView, num_layers: int, *, period: int, default_tokens: int) -> list[Window]:
    """All layers slide but each ``period``-th (Gemma 2 and 3, Cohere 2, OLMo 3, EXAONE 4).

    ``period`` is the family's default, for configs without ``sliding_window_pattern`` and without ``layer_types``.
    """
    if view.names("sliding_window") and not view.has("sliding_window"):
        return [FULL] * num_layers
    tokens = view.integer("sliding_window", default=default_tokens)
    published = _published(view, num_layers, tokens)
    if published is not None:
        return published
    pattern = view.config.get("sliding_window_pattern")
    if isinstance(pattern, str):
        # EXAONE 4 writes its pattern as letters: L is local, G is global; the last layer is always global.
        if not pattern or set(pattern) - {"L", "G"}:
            raise view.reject("sliding_window_pattern", "a number, or letters L and G")
        last = num_layers - 1
        local = [pattern[index % len(pattern)] == "L" and index != last for index in range(num_layers)]
        return [sliding(tokens) if is_local else FULL for is_local in local]
    step = view.integer("sliding_window_pattern", "_sliding_window_pattern", default=period)
    return [sliding(tokens) if (index + 1) % step else FULL for index in range(num_layers)]


def gemma2(view: ConfigView, num_layers: int) -> list[Window]:
    return every_nth_full(view, num_layers, period=2, default_tokens=4096)


def gemma3(view: ConfigView, num_layers: int) -> list[Window]:
    return every_nth_full(view, num_layers, period=6, default_tokens=4096)


def every_fourth_full(view: ConfigView, num_layers: int) -> list[Window]:
    return every_nth_full(view, num_layers, period=4, default_tokens=4096)


def exaone4(view: ConfigView, num_layers: int) -> list[Window]:
    """EXAONE 4: windows only where ``sliding_window`` is set; its small model has none."""
    if not view.has("sliding_window"):
        return [FULL] * num_layers
    return every_nth_full(view, num_layers, period=4, default_tokens=4096)


def kolibri(view: ConfigView, num_layers: int) -> list[Window]:
    return every_nth_full(view, num_layers, period=5, default_tokens=513)


def gpt_oss(view: ConfigView, num_layers: int) -> list[Window]:
    """Every other layer slides, beginning with the first."""
    tokens = view.integer("sliding_window", default=128)
    published = _published(view, num_layers, tokens)
    return published or [FULL if index % 2 else sliding(tokens) for index in range(num_layers)]


def rnj1(view: ConfigView, num_layers: int) -> list[Window]:
    """Rnj-1: none, whatever ``layer_types`` says; only chunked layers would have one (vllm: models/rnj1.py)."""
    if "chunked_attention" in (layer_types(view, num_layers) or ()):
        raise view.reject("layer_types", "no chunked_attention (which tokens such a layer keeps is not known)")
    return [FULL] * num_layers


def first_of_four_full(view: ConfigView, num_layers: int, *, default_tokens: int) -> list[Window]:
    """Every fourth layer is full, beginning with the first (Granite's windows, CWM)."""
    tokens = view.integer("sliding_window", default=default_tokens)
    published = _published(view, num_layers, tokens)
    return published or [sliding(tokens) if index % 4 else FULL for index in range(num_layers)]


def granite_swa(view: ConfigView, num_layers: int) -> list[Window]:
    return first_of_four_full(view, num_layers, default_tokens=128)


def cwm(view: ConfigView, num_layers: int) -> list[Window]:
    return first_of_four_full(view, num_layers, default_tokens=8192)


def muse(view: ConfigView, num_layers: int) -> list[Window]:
    """Muse: every fourth layer is full, counted from the last."""
    tokens = view.integer("sliding_window", default=2048)
    published = _published(view, num_layers, tokens)
    return published or [sliding(tokens) if (num_layers - 1 - index) % 4 else FULL for index in range(num_layers)]


def plamo3(view: ConfigView, num_layers: int) -> list[Window]:
    """PLaMo 3: a window of each layer's own, null where it is full, as its config class lists them."""
    listed = view.items("interleaved_sliding_window")
    if listed is None or len(listed) != num_layers:
        raise view.reject("interleaved_sliding_window", f"a window or null for each of {num_layers} layers")
    one = [ConfigView({"tokens": tokens}, path=f"{view.path}interleaved_sliding_window.") for tokens in listed]
    return [sliding(each.integer("tokens")) if each.has("tokens") else FULL for each in one]


def cohere2_moe(view: ConfigView, num_layers: int) -> list[Window]:
    """Return Cohere 2's windows; the dense layers in front have a period of their own."""
    tokens = view.integer("sliding_window", default=4096)
    published = _published(view, num_layers, tokens)
    if published is not None:
        return published
    dense = min(view.integer("first_k_dense_replace", default=0, minimum=0), num_layers)
    first, step = (
        view.integer("prefix_dense_sliding_window_pattern", default=1),
        view.integer("sliding_window_pattern", default=4),
    )
    periods = [(index, first) for index in range(dense)] + [(index, step) for index in range(num_layers - dense)]
    return [sliding(tokens) if (index + 1) % period else FULL for index, period in periods]


def llama4(view: ConfigView, num_layers: int) -> list[Window]:
    """Chunks of ``attention_chunk_size`` where a layer has rotary positions; full where it has none (every 4th)."""
    if view.names("attention_chunk_size") and not view.has("attention_chunk_size"):
        return [FULL] * num_layers
    tokens = view.integer("attention_chunk_size", default=8192)
    published = _published(view, num_layers, tokens)
    if published is not None:
        return published
    rotary = view.integers("no_rope_layers") or []
    if len(rotary) != num_layers:
        step = view.integer("no_rope_layer_interval", default=4)
        rotary = [int((index + 1) % step != 0) for index in range(num_layers)]
    return [chunked(tokens) if has_rope else FULL for has_rope in rotary]

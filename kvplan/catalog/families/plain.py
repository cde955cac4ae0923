"""Plain decoders: the same attention and the same dense feed-forward in every layer, with small differences by family.

Each row of ``FAMILIES`` states one family's differences. A text is the config key of a flag with its default, a
bool is fixed by the modelling code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families import windows
from kvplan.catalog.families.body import Body, Sizes, read_max_positions, read_rope, read_sizes, read_tied
from kvplan.catalog.parts import AttentionTraits, Window, attention, feed_forward, norms, outside
from kvplan.catalog.spec import FeedForward, LayerSpec


@dataclass(frozen=True, slots=True)
class Flag:
    """A trait that the config decides: the first of ``keys`` that is present, else ``default``."""

    keys: tuple[str, ...]
    default: bool

    def read(self, view: ConfigView) -> bool:
        return view.flag(*self.keys, default=self.default)


Trait = bool | Flag


def read_trait(view: ConfigView, trait: Trait) -> bool:
    return trait if isinstance(trait, bool) else trait.read(view)


@dataclass(frozen=True, slots=True)
class PlainFamily:
    """How one family differs from Llama."""

    qkv_bias: Trait = False
    output_bias: Trait = False
    mlp_bias: Trait = False
    gated: bool = True
    qk_norm: Literal["none", "head", "full"] = "none"
    qk_norm_flag: Trait = True
    norms: int = 2
    norm_bias: Trait = False
    final_norm: bool = True
    tied: bool = False
    head_bias: bool = False
    head_default: int | None = None
    intermediate_ratio: int | None = None
    windows: Callable[[ConfigView, int], list[Window]] = windows.no_window


ATTENTION_BIAS = Flag(("attention_bias",), False)
MLP_BIAS = Flag(("mlp_bias",), False)
USE_BIAS = Flag(("use_bias",), True)

LLAMA = PlainFamily(ATTENTION_BIAS, ATTENTION_BIAS, MLP_BIAS)
_QWEN3 = PlainFamily(ATTENTION_BIAS, ATTENTION_BIAS, qk_norm="head", windows=windows.when_used)
_OLMO2 = PlainFamily(ATTENTION_BIAS, ATTENTION_BIAS, qk_norm="full")
_GEMMA = PlainFamily(ATTENTION_BIAS, ATTENTION_BIAS, tied=True, head_default=256)

FAMILIES: dict[str, PlainFamily] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": PlainFamily(windows=windows.mistral),
    "Qwen2ForCausalLM": PlainFamily(qkv_bias=True, windows=windows.when_used),
    "Qwen3ForCausalLM": _QWEN3,
}


def family_traits(view: ConfigView, family: PlainFamily) -> AttentionTraits:
    qk_norm = family.qk_norm if read_trait(view, family.qk_norm_flag) else "none"
    return AttentionTraits.biased(
        read_trait(view, family.qkv_bias), read_trait(view, family.output_bias), qk_norm=qk_norm
    )


def dense_feed_forward(view: ConfigView, family: PlainFamily, sizes: Sizes) -> FeedForward:
    default = family.intermediate_ratio * sizes.hidden if family.intermediate_ratio else None
    intermediate = view.integer("intermediate_size", "ffn_hidden_size", default=default)
    return feed_forward(sizes.hidden, intermediate, gated=family.gated, bias=read_trait(view, family.mlp_bias))


def read_plain(view: ConfigView, family: PlainFamily) -> Body:
    """A body whose every layer has the same feed-forward; see ``assemble`` for mixtures."""
    sizes = read_sizes(view, head_default=family.head_default)
    part = dense_feed_forward(view, family, sizes)
    return assemble(view, family, sizes, [part] * sizes.layers)


def assemble(view: ConfigView, family: PlainFamily, sizes: Sizes, feed_forwards: list[FeedForward]) -> Body:
    """Layers with the family's attention and the given feed-forwards, and what stands around them."""
    traits = family_traits(view, family)
    norm_bias = read_trait(view, family.norm_bias)
    layer_norms = norms(family.norms, sizes.hidden, bias=norm_bias)

    def layer(window: Window, part: FeedForward) -> LayerSpec:
        mixer = attention(sizes.hidden, sizes.heads, sizes.kv_heads, sizes.head, window=window, traits=traits)
        return LayerSpec(mixer, None, part, layer_norms)

    tied = read_tied(view, default=family.tied)
    return Body(
        layers=tuple(map(layer, family.windows(view, sizes.layers), feed_forwards)),
        tensors=outside(
            sizes.hidden,
            sizes.vocab,
            tied=tied,
            final_norm=family.final_norm,
            norm_bias=norm_bias,
            head_bias=family.head_bias,
        ),
        hidden_size=sizes.hidden,
        vocab_size=sizes.vocab,
        tied=tied,
        max_position_embeddings=read_max_positions(view),
        rope=read_rope(view, sizes.head),
    )

"""Plain decoders: the same attention and the same dense feed-forward in every layer, with small differences by family.

Each row of ``profiles/families.json`` states one family's differences. A text is the config key of a flag with its
default, a bool is fixed by the modelling code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from operator import itemgetter
from types import ModuleType
from typing import Any, Literal

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families import positions
from kvplan.catalog.families.common import (
    Body,
    Sizes,
    multi_token_layers,
    read_max_positions,
    read_rope,
    read_sizes,
    read_tied,
    softmax_attention,
    stacked,
)
from kvplan.catalog.families.softmax import windows
from kvplan.catalog.parts import AttentionTraits, Window, feed_forward, norms, outside
from kvplan.catalog.spec import FeedForward, RopeSpec
from kvplan.catalog.tensors import Tensor
from kvplan.catalog.typed_json import FactError
from kvplan.paths import read_shipped


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
    qk_norm: Literal["none", "head", "per_head", "full"] = "none"
    qk_norm_flag: Trait = True
    qk_norm_bias: bool = False
    norms: int = 2
    one_norm_flag: Trait = False
    """Attention and feed-forward stand side by side behind one norm."""
    four_norms_flag: Trait = False
    """Attention and feed-forward each have a norm behind them too."""
    layer_scalars: int = 0
    """Single learned numbers of each layer (an activation's)."""
    norm_bias: Trait = False
    final_norm: bool = True
    tied: bool | None = False
    """Where the config is silent; None: never, whatever it says."""
    head_bias: Trait = False
    head_default: int | None = None
    intermediate_ratio: int | None = None
    windows: Callable[[ConfigView, int], list[Window]] = windows.no_window
    max_positions: int | None = None
    """The longest sequence where the config is silent: the default of the family's class in transformers."""
    rotary_share: float = 1.0
    """The part of a head that turns, where the config is silent."""
    ropes: Callable[[ConfigView, int], tuple[RopeSpec, ...]] | None = None
    """Where layers of different kinds turn differently."""
    sinks: bool = False
    output_gate: Literal["none", "element", "separate", "head"] = "none"
    gate_bias: bool = False
    """A number for each head beside the gate of the output."""
    down_bias: bool = False
    """A bias of the feed-forward's last matrix alone."""


ATTENTION_BIAS = Flag(("attention_bias",), False)
MLP_BIAS = Flag(("mlp_bias",), False)
LLAMA = PlainFamily(ATTENTION_BIAS, ATTENTION_BIAS, MLP_BIAS)


def family_rows(kind: str) -> dict[str, dict[str, Any]]:
    """Return the rows of ``profiles/families.json`` of one kind, by name."""
    return read_shipped("families.json", itemgetter(kind))


def typed_row(kind: type[Any], row: Mapping[str, Any], functions: Mapping[str, ModuleType]) -> dict[str, Any]:
    """Return ``row`` as ``kind`` has its fields: flags for their keys, functions for their names.

    functions: by field, the module that has them. FactError for a field that ``kind`` lacks.
    """
    types = {each.name: each.type for each in fields(kind)}
    if unknown := row.keys() - types.keys():
        raise FactError(f"A row of families.json has {', '.join(sorted(unknown))}, which no {kind.__name__} has.")
    found = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    flags = {name: _flag(value) for name, value in row.items() if types[name] == "Trait" and isinstance(value, str)}
    return found | flags | {name: getattr(module, row[name]) for name, module in functions.items() if name in row}


def _flag(text: str) -> Flag:
    """``a|b=true``: the keys, and what stands for silence; false where nothing does."""
    keys, _, default = text.partition("=")
    return Flag(tuple(keys.split("|")), default == "true")


def plain_family(row: Mapping[str, Any]) -> PlainFamily:
    """Return what a row states. FactError for what no family has."""
    return PlainFamily(**typed_row(PlainFamily, row, {"windows": windows, "ropes": positions}))


FAMILIES = {name: plain_family(row) for name, row in family_rows("plain").items()}


def family_traits(view: ConfigView, family: PlainFamily) -> AttentionTraits:
    qk_norm = family.qk_norm if read_trait(view, family.qk_norm_flag) else "none"
    return AttentionTraits.biased(
        read_trait(view, family.qkv_bias),
        read_trait(view, family.output_bias),
        qk_norm=qk_norm,
        qk_norm_bias=family.qk_norm_bias,
        sinks=family.sinks,
        output_gate=family.output_gate,
        gate_bias=family.gate_bias,
    )


def dense_feed_forward(view: ConfigView, family: PlainFamily, sizes: Sizes) -> FeedForward:
    default = family.intermediate_ratio * sizes.hidden if family.intermediate_ratio else None
    intermediate = view.integer("intermediate_size", "ffn_hidden_size", default=default)
    bias = read_trait(view, family.mlp_bias)
    return feed_forward(sizes.hidden, intermediate, gated=family.gated, bias=bias, down_bias=family.down_bias)


def read_plain(view: ConfigView, family: PlainFamily) -> Body:
    """A body whose every layer has the same feed-forward; see ``assemble`` for mixtures."""
    sizes = read_sizes(view, head_default=family.head_default)
    part = dense_feed_forward(view, family, sizes)
    return assemble(view, family, sizes, [part] * sizes.layers)


def pangu_family(view: ConfigView, of_layers: Callable[[ConfigView, int], list[Window]]) -> PlainFamily:
    """Llama with four norms where ``sandwich_norm`` says so, biased by keys of its own, and windows ``of_layers``."""
    bias = view.flag("attention_bias", default=False) or view.flag("bias", default=False)
    return PlainFamily(
        view.flag("qkv_bias", default=bias),
        bias,
        MLP_BIAS,
        four_norms_flag=Flag(("sandwich_norm",), False),
        windows=of_layers,
    )


def read_pangu(view: ConfigView) -> Body:
    """openPangu Embedded."""
    for key in ("param_sink_number", "interleaved_sliding_window", "qk_nope_head_dim", "n_routed_experts"):
        if view.config.get(key):
            raise view.reject(key, "none (what its layers keep then is not known)")
    return read_plain(view, pangu_family(view, windows.every_layer))


def read_telechat2(view: ConfigView) -> Body:
    """TeleChat 2: Llama with biases of the last matrix of each block alone (vllm: models/telechat2.py)."""
    if view.flag("embed_layernorm", default=False):
        raise view.reject("embed_layernorm", "false (vLLM's class has no norm behind the embedding)")
    return read_plain(view, PlainFamily(output_bias=True, down_bias=True, tied=True))


def read_step1(view: ConfigView) -> Body:
    """Step 1: Llama with ALiBi in place of rotary positions, and groups of heads (vllm: models/step1.py)."""
    groups = view.integer("num_attention_groups", "num_key_value_heads", default=1)
    counted = view.changed({"num_key_value_heads": groups, "head_dim": None})
    return replace(read_plain(counted, replace(LLAMA, tied=True)), rope=None)


def _num_norms(view: ConfigView, family: PlainFamily) -> int:
    if read_trait(view, family.four_norms_flag):
        return 4
    return 1 if read_trait(view, family.one_norm_flag) else family.norms


def assemble(view: ConfigView, family: PlainFamily, sizes: Sizes, feed_forwards: list[FeedForward]) -> Body:
    """Layers with the family's attention and the given feed-forwards, and what stands around them."""
    traits = family_traits(view, family)
    norm_bias = read_trait(view, family.norm_bias)
    layer_norms = norms(_num_norms(view, family), sizes.hidden, bias=norm_bias)
    layer_norms += tuple(Tensor(f"scalar{index}", (1,), "norm") for index in range(family.layer_scalars))

    windows_of_layers = family.windows(view, sizes.layers)
    mixers = {window: softmax_attention(sizes, traits, window=window) for window in set(windows_of_layers)}
    layers = tuple(stacked(sizes, [mixers[window] for window in windows_of_layers], feed_forwards, layer_norms))
    tied = family.tied is not None and read_tied(view, default=family.tied)
    body = Body(
        layers=layers,
        tensors=outside(
            sizes.hidden,
            sizes.vocab,
            tied=tied,
            final_norm=family.final_norm,
            norm_bias=norm_bias,
            head_bias=read_trait(view, family.head_bias),
        ),
        hidden_size=sizes.hidden,
        vocab_size=sizes.vocab,
        tied=tied,
        max_position_embeddings=read_max_positions(view, default=family.max_positions),
        rope=read_rope(view, sizes.head, default_share=family.rotary_share),
        extras=multi_token_layers(view, layers[-1], sizes.hidden, keys=("num_nextn_predict_layers",)),
    )
    return body if family.ropes is None else positions.with_ropes(body, family.ropes(view, sizes.head))

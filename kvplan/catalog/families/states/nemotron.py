"""Nemotron-H, Nemotron 3 and Puzzle: each layer is one block, of Mamba 2, attention, a feed-forward or experts."""

from __future__ import annotations

from collections.abc import Mapping

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body, Sizes, decoder_body, multi_token_layers, read_sizes, softmax_attention
from kvplan.catalog.families.softmax.mixtures import EXPERT_KEYS, TOP_K_KEYS
from kvplan.catalog.families.states.state import Mamba2Sizes, mamba2, read_state_dtype
from kvplan.catalog.parts import FULL, MoeTraits, feed_forward, mixture, norms, sliding
from kvplan.catalog.spec import ExtraModule, FeedForward, LayerSpec, StateMixer

_NEMOTRON_LETTERS = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "mlp": "-",
    "moe": "E",
}
"""Names of each kind: the published ones, and those that transformers 5 writes."""


def read_nemotron_puzzle(view: ConfigView) -> Body:
    """Nemotron 3 Puzzle: Nemotron 3 whose blocks each have sizes of their own, in ``block_configs``."""
    blocks = _puzzle_blocks(view, "block_configs")
    if not blocks:
        raise view.reject("block_configs", "an object for each layer")
    kinds = [_puzzle_letter(block) for block in blocks]
    sizes = read_sizes(
        view.changed({"num_hidden_layers": len(blocks)}), head_default=view.integer("attention_head_dim", default=128)
    )
    made: dict[str, LayerSpec] = {}
    layers = []
    for block, letter in zip(blocks, kinds, strict=True):
        key = repr(sorted(block.config.items(), key=str))
        if key not in made:
            made[key] = _nemotron_layer(block, sizes, letter)
        layers.append(made[key])
    return decoder_body(view, sizes, layers, rotary=False, extras=_puzzle_extras(view, sizes))


def _puzzle_blocks(view: ConfigView, key: str) -> list[ConfigView]:
    """The config as each block sees it: its own keys before those of all."""
    listed = view.items(key) or []
    if not all(isinstance(block, Mapping) for block in listed):
        raise view.reject(key, "an object for each layer")
    common = {name: value for name, value in view.config.items() if not name.endswith("block_configs")}
    return [
        ConfigView({**common, **block}, path=f"{view.path}{key}[{index}].", assumptions=view.assumptions)
        for index, block in enumerate(listed)
    ]


def _puzzle_letter(block: ConfigView) -> str:
    letter = _NEMOTRON_LETTERS.get(block.text("block_type", default=""))
    if letter is None:
        raise block.reject("block_type", "mamba, attention, mlp or moe")
    return letter


def _puzzle_extras(view: ConfigView, sizes: Sizes) -> tuple[ExtraModule, ...]:
    """A layer for multi-token prediction of an attention and a mixture, with sizes of their own."""
    blocks = _puzzle_blocks(view, "mtp_block_configs")
    if [_puzzle_letter(block) for block in blocks] != ["*", "E"]:
        count = view.integer("num_nextn_predict_layers", default=0, minimum=0, maximum=64)
        return (ExtraModule("mtp", "multi_token_prediction", None, count),) if count else ()
    attending, routed = (_nemotron_layer(block, sizes, kind) for block, kind in zip(blocks, "*E", strict=True))
    layer = LayerSpec(attending.mixer, None, routed.feed_forward, norms(2, sizes.hidden))
    return multi_token_layers(view, layer, sizes.hidden, keys=("num_nextn_predict_layers",))


def _nemotron_layer(view: ConfigView, sizes: Sizes, letter: str) -> LayerSpec:
    """One layer of a kind. An attention of Puzzle may have a window or KV heads of its own."""
    one_norm = norms(1, sizes.hidden)
    if letter == "M":
        return LayerSpec(_nemotron_mamba(view, sizes), None, None, one_norm)
    if letter == "-":
        bias = view.flag("mlp_bias", default=False)
        part = feed_forward(sizes.hidden, view.integer("intermediate_size"), gated=False, bias=bias, name="mixer")
        return LayerSpec(None, None, part, one_norm)
    if letter == "E":
        return LayerSpec(None, None, _nemotron_mixture(view, sizes), one_norm)
    own = read_sizes(view.changed({"num_hidden_layers": sizes.layers}), head_default=sizes.head)
    tokens = view.optional_integer("sliding_window") if view.has("block_type") else None
    window = sliding(tokens) if tokens else FULL
    return LayerSpec(softmax_attention(own, window=window), None, None, one_norm)


def read_nemotron_h(view: ConfigView) -> Body:
    """Nemotron-H and Nemotron 3: each layer is one thing: Mamba 2 (M), attention (*), MLP (-) or experts (E)."""
    pattern = _nemotron_pattern(view)
    counted = view.changed({"num_hidden_layers": len(pattern)})
    sizes = read_sizes(counted, head_default=view.integer("attention_head_dim", default=128))
    kinds = {letter: _nemotron_layer(view, sizes, letter) for letter in sorted(set(pattern))}
    layers = [kinds[letter] for letter in pattern]
    return decoder_body(view, sizes, layers, rotary=False, extras=_nemotron_extras(view, sizes))


def _nemotron_pattern(view: ConfigView) -> str:
    """One letter per layer; newer configs spell the kinds out and leave the number of layers to the list."""
    types = view.texts("layers_block_type") or view.texts("layer_types")
    if types is not None and set(types) <= set(_NEMOTRON_LETTERS):
        pattern = "".join(_NEMOTRON_LETTERS[kind] for kind in types)
    else:
        pattern = view.text("hybrid_override_pattern")
    stated = view.optional_integer("num_hidden_layers")
    if not pattern or set(pattern) - set("M*-E") or stated not in (None, len(pattern)) or len(pattern) > 4096:
        raise view.reject("hybrid_override_pattern", "one letter of M, *, - and E for each layer")
    return pattern


def _nemotron_mamba(view: ConfigView, sizes: Sizes) -> StateMixer:
    heads, head = view.integer("mamba_num_heads"), view.integer("mamba_head_dim")
    bias = view.flag("use_bias", "mamba_proj_bias", default=False)
    mamba_sizes = Mamba2Sizes(
        heads=heads,
        head=head,
        state=view.integer("ssm_state_size"),
        groups=view.integer("n_groups"),
        kernel=view.integer("conv_kernel", default=4),
        intermediate=heads * head,
        conv_bias=view.flag("use_conv_bias", default=True),
        bias=bias,
        output_bias=bias,
    )
    # a config that is silent: as vLLM (NemotronHForCausalLMConfig) and transformers' class have it
    return mamba2(sizes.hidden, mamba_sizes, state_dtype=read_state_dtype(view) or "float32")


def _nemotron_mixture(view: ConfigView, sizes: Sizes) -> FeedForward:
    count = view.integer("n_shared_experts", default=1, minimum=0)
    return mixture(
        sizes.hidden,
        view.integer(*EXPERT_KEYS),
        view.integer(*TOP_K_KEYS),
        view.integer("moe_intermediate_size"),
        shared_intermediate=view.integer("moe_shared_expert_intermediate_size") if count else 0,
        traits=MoeTraits(
            name="mixer",
            gated=False,
            router_bias=True,
            shared_name="shared_experts",
            latent_size=view.optional_integer("moe_latent_size"),
        ),
    )


def _nemotron_extras(view: ConfigView, sizes: Sizes) -> tuple[ExtraModule, ...]:
    """One attention and one mixture together are a layer for multi-token prediction; other patterns are not counted."""
    types = view.texts("mtp_layers_block_type")
    pattern = view.text("mtp_hybrid_override_pattern", default="")
    if types is not None:
        pattern = "".join(_NEMOTRON_LETTERS.get(kind, "?") for kind in types)
    if pattern == "*E":
        layer = LayerSpec(softmax_attention(sizes), None, _nemotron_mixture(view, sizes), norms(2, sizes.hidden))
        return multi_token_layers(view, layer, sizes.hidden, keys=("num_nextn_predict_layers",))
    count = view.integer("num_nextn_predict_layers", default=0, minimum=0, maximum=64)
    return (ExtraModule("mtp", "multi_token_prediction", None, count),) if count else ()

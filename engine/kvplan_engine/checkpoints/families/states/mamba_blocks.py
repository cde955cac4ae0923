"""Nemotron H and Nemotron 3, of whose layers each is one block, and Zamba 2, whose transformer blocks are shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import attention, decoder, norms, rope
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.states.parts import mamba2, mamba2_names, refuse_other_activations, step_limits
from kvplan_engine.checkpoints.fields import activation, window
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.mixers import Attention, State
from kvplan_engine.description.model import ModelDescription, Shape

_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_KINDS = {"linear_attention": "mamba", "full_attention": "attention"}


# Nemotron H and Nemotron 3: each layer is one block, of Mamba 2, attention, an MLP or experts.


def read_nemotron_h(config: dict[str, Any]) -> ModelDescription:
    """transformers: NemotronHModel."""
    return _of_blocks(config, [_block_of(config, kind) for kind in _kinds(config)], max_positions=4096)


def read_nemotron_puzzle(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/nemotron_h.py): each block has keys of its own."""
    blocks = []
    for block in config["block_configs"]:
        own = {**config, **block}
        part = _block_of(own, block["block_type"])
        windowed = isinstance(part, Attention)
        blocks.append(replace(part, kept=window(own.get("sliding_window"))) if windowed else part)
    return _of_blocks(config, blocks, max_positions=None)


def _block_of(config: dict[str, Any], kind: str) -> Any:
    parts: dict[str, Callable[[dict[str, Any]], Any]] = {
        "mamba": _mamba,
        "attention": _nemotron_h_attention,
        "mlp": _nemotron_h_mlp,
        "moe": _mixture,
    }
    return parts[kind](config)


def _of_blocks(config: dict[str, Any], blocks: list[Any], **others: Any) -> ModelDescription:
    mixers = [block if isinstance(block, State | Attention) else () for block in blocks]
    parts = [None if isinstance(block, State | Attention) else block for block in blocks]
    return decoder(config, norms(config, key="layer_norm_epsilon"), mixers, parts, **others)


def _kinds(config: dict[str, Any]) -> list[str]:
    """A letter or a name of each layer; the newer configs say ``layers_block_type``."""
    pattern = config.get("hybrid_override_pattern")
    if pattern is not None:
        return [_LETTERS[letter] for letter in pattern]
    names = config.get("layers_block_type") or config["layer_types"]
    return [_KINDS.get(name, name) for name in names]


def _mamba(config: dict[str, Any]) -> State:
    """The first models do not say ``mamba_ssm_cache_dtype``: transformers' class has float32, and vLLM takes it.

    Steps are limited as ``time_step_limit`` says, which mamba_ssm's kernels heed; transformers' prompts have
    ``time_step_min`` as their least step instead, its decoding none.
    """
    refuse_other_activations(config, "mamba_hidden_act")
    bias = bool(config.get("use_bias", False))
    return mamba2(
        heads=int(config.get("mamba_num_heads", 128)),
        head_size=int(config.get("mamba_head_dim", 64)),
        columns=int(config.get("ssm_state_size", 128)),
        groups=int(config.get("n_groups", 8)),
        kernel=int(config.get("conv_kernel", 4)),
        bias=bias,
        conv_bias=bool(config.get("use_conv_bias", True)),
        recurrent_dtype=config.get("mamba_ssm_cache_dtype") or "float32",
        step_limits=step_limits(config),
    )


def _nemotron_h_attention(config: dict[str, Any]) -> Attention:
    """Return attention without positions. The first models say ``attention_head_dim``."""
    size = int(config.get("head_dim") or config.get("attention_head_dim") or 128)
    return attention(config, size=size, rope=None)


def _plain(config: dict[str, Any], size: int) -> Mlp:
    act = activation(config.get("mlp_hidden_act", "relu2"))
    return Mlp(size, act, gated=False, bias=bool(config.get("mlp_bias", False)))


def _nemotron_h_mlp(config: dict[str, Any]) -> Mlp:
    return _plain(config, int(config["intermediate_size"]))


def _mixture(config: dict[str, Any]) -> Mixture:
    latent = config.get("moe_latent_size")
    return Mixture(
        int(config["n_routed_experts"]),
        int(config["num_experts_per_tok"]),
        _plain(config, int(config["moe_intermediate_size"])),
        scoring="sigmoid",
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor", 1.0)),
        correction=True,
        num_groups=int(config.get("n_group", 1)),
        top_groups=int(config.get("topk_group", 1)),
        shared=_plain(config, int(config["moe_shared_expert_intermediate_size"])),
        latent_size=int(latent) if latent else None,
    )


_NAMES = TensorNames(
    embedding="backbone.embeddings",
    layer="backbone.layers.{}",
    qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
    output="mixer.o_proj",
    up=("mixer.up_proj",),
    down="mixer.down_proj",
    attention_norm="norm",
    mlp_norm="norm",
    final_norm="backbone.norm_f",
    inside={
        **mamba2_names("mixer"),
        "router": "mixer.gate",
        "correction": "mixer.gate.e_score_correction_bias",
        "experts.up": "mixer.experts.{}.up_proj",
        "experts.down": "mixer.experts.{}.down_proj",
        "shared.up": "mixer.shared_experts.up_proj",
        "shared.down": "mixer.shared_experts.down_proj",
        "latent_down": "mixer.fc1_latent_proj",
        "latent_up": "mixer.fc2_latent_proj",
    },
)

# Zamba 2: Mamba 2 in every layer; before some of them runs one of a few transformer blocks that they share.


def read_zamba2(config: dict[str, Any]) -> ModelDescription:
    """transformers: Zamba2Model. A shared block reads the hidden state and the embedding side by side."""
    hidden, is_hybrid = int(config["hidden_size"]), [kind == "hybrid" for kind in config["layers_block_type"]]
    state, mixer = _state(config), _zamba2_attention(config)
    beside = (Shape("join", (hidden, hidden)), *_adapters(config))
    blocks = min(int(config.get("num_mem_blocks", 1)), sum(is_hybrid))
    positions = 16384 if config.get("use_long_context", False) else int(config.get("max_position_embeddings", 4096))
    others = tuple(shape for index in range(blocks) for shape in _block(config, f"blocks.{index}"))
    return decoder(
        {**config, "max_position_embeddings": positions},
        norms(config),
        [(mixer, state) if each else state for each in is_hybrid],
        None,
        shapes=[beside if each else () for each in is_hybrid],
        tied=True,
        others=others,
    )


def _state(config: dict[str, Any]) -> State:
    inner, heads = int(config.get("mamba_expand", 2)) * int(config["hidden_size"]), int(config.get("n_mamba_heads", 8))
    return mamba2(
        heads=heads,
        head_size=inner // heads,
        columns=int(config.get("mamba_d_state", 64)),
        groups=int(config.get("mamba_ngroups", 1)),
        kernel=int(config.get("mamba_d_conv", 4)),
        bias=bool(config.get("add_bias_linear", False)),
    )


def _zamba2_attention(config: dict[str, Any]) -> Attention:
    """Twice as wide as the hidden state, because it reads two of them."""
    heads = int(config["num_attention_heads"])
    size = 2 * int(config["hidden_size"]) // heads
    return Attention(
        heads,
        int(config.get("num_key_value_heads") or heads),
        size,
        size,
        scale=(size / 2) ** -0.5,
        rope=rope(config, size) if config.get("use_mem_rope", False) else None,
        shared_weights=True,
    )


def _block(config: dict[str, Any], name: str) -> list[Shape]:
    """The weights of one shared block: attention over two hidden sizes, a gated MLP, a norm before each."""
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    size = 2 * hidden // heads
    kv = int(config.get("num_key_value_heads") or heads) * size
    feed_forward = _zamba2_mlp(config)
    shapes = [
        Shape(f"{name}.query", (heads * size, 2 * hidden)),
        Shape(f"{name}.key", (kv, 2 * hidden)),
        Shape(f"{name}.value", (kv, 2 * hidden)),
        Shape(f"{name}.output", (hidden, heads * size)),
        Shape(f"{name}.up", (2 * feed_forward.size, hidden)),
        Shape(f"{name}.down", (hidden, feed_forward.size)),
        Shape(f"{name}.attention_norm", (2 * hidden,)),
        Shape(f"{name}.mlp_norm", (hidden,)),
    ]
    if feed_forward.bias:
        shapes += [Shape(f"{name}.up.bias", (2 * feed_forward.size,)), Shape(f"{name}.down.bias", (hidden,))]
    return shapes


def _zamba2_mlp(config: dict[str, Any]) -> Mlp:
    size = int(config.get("intermediate_size") or 4 * int(config["hidden_size"]))
    act = activation(config.get("hidden_act", "gelu"))
    return Mlp(size, act, bias=bool(config.get("add_bias_linear", False)))


def _adapters(config: dict[str, Any]) -> list[Shape]:
    """Low-rank corrections of a shared block that each layer has of its own: of the MLP, and of attention if asked."""
    hidden, rank = int(config["hidden_size"]), int(config.get("adapter_rank", 128))
    widths = {"mlp_adapter": (hidden, 2 * _zamba2_mlp(config).size)}
    if config.get("use_shared_attention_adapter", False):
        widths |= {f"{name}_adapter": (2 * hidden, 2 * hidden) for name in ("query", "key", "value")}
    return [
        shape
        for name, (inputs, outputs) in widths.items()
        for shape in (Shape(f"{name}.down", (rank, inputs)), Shape(f"{name}.up", (outputs, rank)))
    ]


BLOCKS = (
    Family(("NemotronHForCausalLM",), read_nemotron_h, _NAMES),
    Family(("NemotronHPuzzleForCausalLM",), read_nemotron_puzzle),
    Family(("Zamba2ForCausalLM",), read_zamba2),
)

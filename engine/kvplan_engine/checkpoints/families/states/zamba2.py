"""Zamba 2: Mamba 2 in every layer; before some of them runs one of a few transformer blocks that they share."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import model, norms
from kvplan_engine.checkpoints.families.states.parts import mamba2
from kvplan_engine.checkpoints.fields import activation, rope
from kvplan_engine.description.feed_forward import Mlp
from kvplan_engine.description.mixers import Attention, State
from kvplan_engine.description.model import Layer, ModelDescription, Shape


def read_zamba2(config: dict[str, Any]) -> ModelDescription:
    """transformers: Zamba2Model. A shared block reads the hidden state and the embedding side by side."""
    norm, hidden = norms(config), int(config["hidden_size"])
    kinds = config["layers_block_type"]
    state, mixer = _state(config), _attention(config)
    join = Shape("join", (hidden, hidden))
    adapters = _adapters(config)
    plain = Layer((state,), None, norm)
    hybrid = Layer((mixer, state), None, norm, others=(join, *adapters))
    layers = [hybrid if kind == "hybrid" else plain for kind in kinds]
    blocks = min(int(config.get("num_mem_blocks", 1)), sum(kind == "hybrid" for kind in kinds))
    positions = 16384 if config.get("use_long_context", False) else int(config.get("max_position_embeddings", 4096))
    others = tuple(shape for index in range(blocks) for shape in _block(config, f"blocks.{index}"))
    return model({**config, "max_position_embeddings": positions}, layers, norm, tied=True, others=others)


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


def _attention(config: dict[str, Any]) -> Attention:
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
    feed_forward = _mlp(config)
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


def _mlp(config: dict[str, Any]) -> Mlp:
    size = int(config.get("intermediate_size") or 4 * int(config["hidden_size"]))
    act = activation(config.get("hidden_act", "gelu"))
    return Mlp(size, act, bias=bool(config.get("add_bias_linear", False)))


def _adapters(config: dict[str, Any]) -> list[Shape]:
    """Low-rank corrections of a shared block that each layer has of its own: of the MLP, and of attention if asked."""
    hidden, rank = int(config["hidden_size"]), int(config.get("adapter_rank", 128))
    widths = {"mlp_adapter": (hidden, 2 * _mlp(config).size)}
    if config.get("use_shared_attention_adapter", False):
        widths |= {f"{name}_adapter": (2 * hidden, 2 * hidden) for name in ("query", "key", "value")}
    return [
        shape
        for name, (inputs, outputs) in widths.items()
        for shape in (Shape(f"{name}.down", (rank, inputs)), Shape(f"{name}.up", (outputs, rank)))
    ]

"""Nemotron-NAS, whose layers lack parts; Domyn Edge; and layers that are gone through again (HRM-Text, Dory, ...)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints import fields
from kvplan_engine.checkpoints.families.common import attention, decoder, mlp, model, norms, rope, window
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import head_size, with_heads_of
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.feed_forward import Mlp
from kvplan_engine.description.mixers import Attention, Kept
from kvplan_engine.description.model import Layer, ModelDescription, Shape
from kvplan_engine.description.norms import Norms
from kvplan_engine.errors import EngineError

# Nemotron-NAS (DeciLM): a Llama whose layers each have KV heads and an MLP of their own, or none.


def read_decilm(config: dict[str, Any]) -> ModelDescription:
    """The keys that come with the checkpoint's own code (modeling_decilm.py)."""
    blocks = config["block_configs"]
    mixers = [_attention(config, block["attention"]) or () for block in blocks]
    return decoder(config, norms(config), mixers, [_feed_forward(config, block["ffn"]) for block in blocks])


def _attention(config: dict[str, Any], block: dict[str, Any]) -> Attention | None:
    """``n_heads_in_group`` query heads share a KV head."""
    _refuse_linear(block)
    if block.get("no_op"):
        return None
    heads = int(config["num_attention_heads"])
    return attention(config, num_kv_heads=heads // int(block["n_heads_in_group"]))


def _feed_forward(config: dict[str, Any], block: dict[str, Any]) -> Mlp | None:
    """``ffn_mult`` gives a gated MLP of 2/3 of so many hidden sizes, up to the next multiple of 256."""
    _refuse_linear(block)
    if block.get("no_op"):
        return None
    size = int(2 * float(block["ffn_mult"]) * int(config["hidden_size"]) / 3)
    return mlp(config, -(-size // 256) * 256)


def _refuse_linear(block: dict[str, Any]) -> None:
    if block.get("replace_with_linear"):
        raise EngineError("the engine does not know DeciLM's blocks that are one matrix (replace_with_linear).")


# Domyn Edge: heads of each layer's own size, windows and positions layer by layer. It is described and not run.


def read_domyn_edge(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/domyn_edge.py): keys' norms have a weight, queries' none."""
    plain, norm, part = {**config, "attention_bias": False}, norms(config, places="both"), mlp(config, bias=False)
    mixers = []
    for index, kind in enumerate(config["position_layers"]):
        size, left = _head_size(config, index), int(config["window_sizes"][index][0])
        turns = rope(config, size) if kind == "rope" else None
        mixers.append(attention(plain, size=size, rope=turns, kept=fields.window(left + 1 if left > 0 else None)))
    key_norms = [(Shape("k_norm", (mixer.key_size,)),) for mixer in mixers]
    return decoder(config, norm, mixers, part, shapes=key_norms, max_positions=None, tied=True)


def _head_size(config: dict[str, Any], index: int) -> int:
    if config.get("head_sizes") is not None:
        return int(config["head_sizes"][index])
    own = config["per_layer_config"].get(str(index)) or {}
    return int(own.get("head_dim") or config["head_dim"])


_BARE = Norms("rms_none")


def _again(mixer: Attention, **changed: Any) -> Layer:
    """Another pass, which keeps what it makes of the same weights."""
    return Layer((replace(mixer, shared_weights=True, **changed),), None, _BARE)


# Layers that are gone through again: weights once, a cache for each pass. They are described and not run.


def read_loop_coder(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/iquest_loopcoder.py): later passes keep a window."""
    plain = {**config, "attention_bias": False, "head_dim": None}
    mixer, number = attention(plain), int(config["num_hidden_layers"])
    heads, size = mixer.num_heads, mixer.key_size
    gate = (Shape("loop_gate", (heads, size)), Shape("loop_gate.bias", (heads,)))
    first = Layer((mixer,), mlp(config, bias=False), norms(config), others=gate)
    later = _again(mixer, kept=Kept("window", int(config.get("loop_window_size", 64))))
    layers = [first] * number + [later] * (number * (int(config.get("loop_num", 2)) - 1))
    return model(config, layers, norms(config), max_positions=131072)


def read_nanbeige(config: dict[str, Any]) -> ModelDescription:
    """modeling_nanbeige.py of Nanbeige/Nanbeige4.2-3B: Llama, gone through ``num_loops`` times."""
    mixer, number = attention(config), int(config["num_hidden_layers"])
    layers = [Layer((mixer,), mlp(config), norms(config))] * number
    layers += [_again(mixer)] * (number * (int(config.get("num_loops") or 1) - 1))
    return model(config, layers, norms(config), max_positions=262144)


def read_hrm_text(config: dict[str, Any]) -> ModelDescription:
    """transformers: HrmTextModel. A fast stack runs ``L_cycles`` times, then a slow one, ``H_cycles`` times over."""
    keys = {**with_heads_of(128, config), "num_key_value_heads": None, "attention_bias": False}
    depth = int(config.get("num_layers_per_stack") or config["num_hidden_layers"])
    mixer = attention(keys, gate="separate")
    first, passes = Layer((mixer,), mlp(config), _BARE), int(config.get("L_cycles", 3)) + 1
    further = depth * (int(config.get("H_cycles", 2)) * passes - 2)
    start = Shape("z_L_init", (int(config["hidden_size"]),))
    return model(config, [first] * 2 * depth + [_again(mixer)] * further, _BARE, others=(start,))


def read_dory(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/dory.py): each block is attention or an MLP, without norms."""
    kinds, first = config["layer_types"], int(config["n_input_layers"])
    middle = range(first, len(kinds) - int(config["n_output_layers"]))
    layers = [_dory_block(config, kind) for kind in kinds]
    overwrites = config.get("recurrent_kv_cache_mode") == "last_loop"
    for index in list(middle) * (int(config["n_recurrent_loops"]) - 1):
        mixer = next(iter(layers[index].mixers), None)
        changed = {"reads_layer": index} if overwrites else {}
        layers.append(_again(mixer, **changed) if isinstance(mixer, Attention) else Layer((), None, _BARE))
    scale = Shape("logit_scale", (int(config["vocab_size"]),))
    return replace(model(config, layers, _BARE, max_positions=8192, others=(scale,)), tie_word_embeddings=False)


def _dory_block(config: dict[str, Any], kind: str) -> Layer:
    """A block, with the rate at which it turns the stream and the scales beside its matrices."""
    rate = Shape("alpha", (int(config["hidden_size"]),))
    if kind == "mlp":
        part = mlp(config, bias=False)
        return Layer((), part, _BARE, others=(rate, Shape("scales", (2, part.size))))
    plain = {**config, "attention_bias": False}
    kept = window(config, kind)
    mixer = attention(plain, kept=kept, gate="separate", rope=rope(config, head_size(config), kind))
    return Layer((mixer,), None, _BARE, others=(rate, Shape("scales", (2, mixer.query_size))))


DENSE = (
    Family(("DeciLMForCausalLM",), read_decilm, TensorNames()),
    Family(("IQuestLoopCoderForCausalLM",), read_loop_coder),
    Family(("HrmTextForCausalLM",), read_hrm_text),
    Family(("NanbeigeForCausalLM",), read_nanbeige),
    Family(("DoryForCausalLM",), read_dory),
    Family(("DomynEdgeForCausalLM",), read_domyn_edge),
)

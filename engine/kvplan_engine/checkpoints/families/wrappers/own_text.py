"""Models that see whose language model is that of no other architecture. They are described and not run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import attention, decoder, norms, rope, with_layers
from kvplan_engine.checkpoints.families.dense.like_llama import CHATGLM
from kvplan_engine.checkpoints.families.dense.readers import llama
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.parts import shared_mlp
from kvplan_engine.checkpoints.families.mixtures.table import read_ernie4_5_moe, read_qwen3_moe
from kvplan_engine.checkpoints.families.windows.readers import read_muse_spark
from kvplan_engine.checkpoints.families.wrappers.multimodal import text_of
from kvplan_engine.checkpoints.fields import head_size, kv_heads, mlp
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription, Shape

_NORMS = {"qwen3": "head", "olmo": "full"}
_MOLMO_ROWS = 128
"""Of the embedding, for tokens that the head lacks."""


def _text(config: dict[str, Any], **own: Any) -> dict[str, Any]:
    return {**text_of(config), "architectures": config["architectures"], **own}


def _with_rows(found: ModelDescription, count: int) -> ModelDescription:
    shapes = (Shape("model.new_embedding", (count, found.hidden_size)),) if count else ()
    return replace(found, others=found.others + shapes)


def _molmo(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/molmo.py): ``intermediate_size`` is of gate and up together."""
    own = {
        "vocab_size": config.get("embedding_size") or config["vocab_size"],
        "intermediate_size": int(config["intermediate_size"]) // 2,
        "tie_word_embeddings": False,
        "mlp_bias": False,
    }
    kind = "all" if config.get("attention_layer_norm", False) else "none"
    bias = bool(config.get("qkv_bias", False))
    return _with_rows(llama({**config, **own}, qkv_bias=bias, output_bias=False, head_norm=kind), _MOLMO_ROWS)


def _molmo2(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/molmo2.py)."""
    text = _text(config, tie_word_embeddings=False)
    kind = _NORMS[text.get("qk_norm_type", "qwen3")] if text.get("use_qk_norm", True) else "none"
    bias = bool(text.get("qkv_bias", text.get("attention_bias", False)))
    found = llama({**text, "mlp_bias": False}, qkv_bias=bias, output_bias=False, head_norm=kind)
    return _with_rows(found, int(text.get("additional_vocab_size", _MOLMO_ROWS)))


def _aria(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/aria.py)."""
    text = _text(config, tie_word_embeddings=False)
    expert = mlp(text)
    shared = shared_mlp(text, expert.size * int(text.get("moe_num_shared_experts", 2)))
    mixture = Mixture(int(text["moe_num_experts"]), int(text["moe_topk"]), expert, shared=shared)
    return decoder(text, norms(text), attention(text), mixture)


def _ernie_vl(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/ernie45_vl_moe.py): experts of images beside those of text."""
    number, size = int(config["moe_num_experts"][1]), int(config["moe_intermediate_size"][1])
    pairs = {key: value[0] for key, value in config.items() if key.startswith("moe_") and isinstance(value, list)}
    text = {**config, **pairs, "moe_num_shared_experts": config.get("moe_num_shared_experts", 0)}
    found, hidden = read_ernie4_5_moe(text), int(config["hidden_size"])
    sizes = {"router": (number, hidden), "correction": (number,), "experts": (number, 3 * size, hidden)}
    shapes = tuple(Shape(f"images.{name}", shape) for name, shape in sizes.items())
    return _without_output_bias(replace(found, head_bias=False), shapes)


def _interns1_pro(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/interns1_pro.py): Qwen 3, turned by learned sums of waves."""
    text = _text(config)
    found = _without_output_bias(read_qwen3_moe(text))
    heads, turns = kv_heads(text, int(text["num_attention_heads"])), _num_frequencies(text)
    return replace(found, others=(Shape("rotary_emb.coefficients", (2, heads, turns, turns)),))


def _num_frequencies(text: Mapping[str, Any]) -> int:
    scaling, half = text.get("rope_scaling") or text["rope_parameters"], head_size(text) // 2
    if scaling.get("num_inv_freq") is not None:
        return min(int(scaling["num_inv_freq"]), half)
    theta = float(scaling.get("rope_theta") or text.get("rope_theta", 10000.0))
    slowest = 2 * math.pi / int(text["max_position_embeddings"])
    return sum(theta ** (-index / half) > slowest for index in range(half))


def _moondream3(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/moondream3.py): an empty config is the released model's."""
    own = (config.get("config") or {}).get("text") or {}
    experts = own.get("moe") or {}
    sizes = {
        "hidden_size": own.get("dim", 2048),
        "intermediate_size": own.get("ff_dim", 8192),
        "num_hidden_layers": own.get("n_layers", 24),
        "num_attention_heads": own.get("n_heads", 32),
        "num_key_value_heads": own.get("n_kv_heads", 32),
        "vocab_size": own.get("vocab_size", 51200),
        "max_position_embeddings": own.get("max_context", 4096),
        "rope_theta": own.get("rope_theta", 1500000.0),
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": False,
    }
    text = {**config, **sizes}
    hidden, heads = int(text["hidden_size"]), int(text["num_attention_heads"])
    expert = mlp({**text, "intermediate_size": experts.get("expert_inner_dim", 1024)})
    mixture = Mixture(
        int(experts.get("n_experts", 64)),
        int(experts.get("n_experts_per_tok", 8)),
        expert,
        scoring="softmax_of_top",
        router_bias=True,
    )
    sparse = [index >= int(experts.get("start_layer", 4)) for index in range(int(text["num_hidden_layers"]))]
    turns = rope(text, head_size(text), rotary_size=min(32, head_size(text)))
    mixer = attention(text, qkv_bias=True, output_bias=True, rope=turns)
    dense = mlp(text, gated=False, bias=True)
    norm = norms(text, "layer", "parallel")
    scales = (Shape("tau_alpha", (heads,)), Shape("tau", (2, heads, 3 * hidden)))
    return decoder(text, norm, mixer, mixture, sparse, dense=dense, shapes=scales, head_bias=True)


def _without_output_bias(found: ModelDescription, shapes: tuple[Shape, ...] = ()) -> ModelDescription:
    """``found`` without that bias of attention, and with ``shapes`` in layers of experts, of which none has biases."""

    def changed(layer: Layer) -> Layer:
        mixers = tuple(replace(each, output_bias=False) for each in layer.mixers if isinstance(each, Attention))
        part = layer.feed_forward
        if not isinstance(part, Mixture):
            return replace(layer, mixers=mixers)
        shared = None if part.shared is None else replace(part.shared, bias=False)
        return replace(layer, mixers=mixers, feed_forward=replace(part, shared=shared), others=shapes)

    return with_layers(found, changed)


OWN_TEXT = (
    Family(("AriaForConditionalGeneration",), _aria),
    Family(("Ernie4_5_VLMoeForConditionalGeneration",), _ernie_vl),
    Family(("GLM4VForCausalLM",), CHATGLM.read),
    Family(("InternS1ProForConditionalGeneration",), _interns1_pro),
    Family(("MolmoForCausalLM",), _molmo),
    Family(("Moondream3ForCausalLM", "HfMoondream"), _moondream3),
    Family(("Molmo2ForConditionalGeneration",), _molmo2),
    Family(("MuseSparkForConditionalGeneration",), lambda config: read_muse_spark(_text(config))),
)

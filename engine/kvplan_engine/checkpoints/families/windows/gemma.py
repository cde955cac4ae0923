"""Gemma 2, 3, 3n and 4, VaultGemma and Rnj-1; the first two in GGUF files too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import (
    attention,
    by_period,
    decoder,
    mlp,
    model,
    norms,
    rope,
    window,
)
from kvplan_engine.checkpoints.families.family import LLAMA_CPP_NAMES, Family, Gguf
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.feed_forward import FeedForward, Mixture
from kvplan_engine.description.mixers import Attention, Rope
from kvplan_engine.description.model import Layer, LayerEnd, LayerInputs, ModelDescription, Shape
from kvplan_engine.description.norms import NormPlaces
from kvplan_engine.errors import EngineError

# Gemma 2: every other layer has a window, logits are capped, each block stands between two norms.


def read_gemma2(config: dict[str, Any]) -> ModelDescription:
    """transformers: Gemma2Model."""
    return _read(config, "both")


def read_vaultgemma(config: dict[str, Any]) -> ModelDescription:
    """transformers: VaultGemmaModel, without norms behind its blocks. It is described and not run."""
    return _read(config, "before", max_positions=8192)


def _read(config: dict[str, Any], places: NormPlaces, **others: Any) -> ModelDescription:
    mixers = [_gemma2_attention(config, kind) for kind in by_period(config, 2)]
    part = mlp(config, activation="gelu_tanh", bias=False)
    return decoder(config, norms(config, "rms_plus_one", places), mixers, part, **_ends(config, cap=30.0), **others)


def _ends(config: dict[str, Any], cap: float | None = None) -> dict[str, Any]:
    """Embedding and logits. cap: of these, where the config does not say."""
    found = config.get("final_logit_softcapping", cap)
    scale = float(config["hidden_size"]) ** 0.5
    return {"tied": True, "embedding_scale": scale, "logits_softcap": float(found) if found else None}


def _gemma2_attention(config: dict[str, Any], layer_type: str) -> Any:
    cap = config.get("attn_logit_softcapping", 50.0)
    return attention(
        config,
        kept=window(config, layer_type, 4096),
        size=int(config.get("head_dim", 256)),
        scale=float(config.get("query_pre_attn_scalar") or 256) ** -0.5,
        softcap=float(cap) if cap else None,
    )


# Gemma 3: five layers with a window and one without, each with its own RoPE; queries and keys are normalised.


def read_gemma3(config: dict[str, Any]) -> ModelDescription:
    """transformers: Gemma3TextModel."""
    kinds = by_period(config, int(config.get("sliding_window_pattern", 6)))
    mixers = [_gemma3_attention(config, kind) for kind in kinds]
    part = mlp(config, activation="gelu_tanh", bias=False)
    norm = norms(config, "rms_plus_one", "both")
    return decoder(config, norm, mixers, part, max_positions=131072, **_ends(config))


def read_rnj1(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/rnj1.py): none of its layers has a window."""
    number = int(config["num_hidden_layers"])
    if "chunked_attention" in (config.get("layer_types") or ()):
        raise EngineError("the engine does not know which tokens chunked layers of Rnj-1 keep.")
    return read_gemma3({**config, "layer_types": ["full_attention"] * number})


def _gemma3_attention(config: dict[str, Any], layer_type: str) -> Attention:
    size = int(config.get("head_dim", 256))
    return attention(
        {"num_attention_heads": 8, "num_key_value_heads": 4, **config},
        kept=window(config, layer_type, 4096),
        size=size,
        scale=float(config.get("query_pre_attn_scalar") or 256) ** -0.5,
        rope=_rope(config, size, layer_type),
        head_norm="head",
    )


def _rope(config: dict[str, Any], size: int, layer_type: str) -> Rope:
    """Windows have the local base and no scaling; the published configs say one or the other way."""
    if layer_type == "sliding_attention" and "rope_parameters" not in config:
        return Rope(float(config.get("rope_local_base_freq", 10000.0)), size)
    return rope({"rope_theta": 1000000.0, **config}, size, layer_type)


# Gemma 2 and 3 in GGUF files, whose metadata leaves out what llama.cpp knows by a model's size.

_GGUF_NAMES = replace(LLAMA_CPP_NAMES, attention_post_norm="post_attention_norm", mlp_post_norm="post_ffw_norm")
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}


def _gemma2_keys(own: dict[str, Any]) -> dict[str, Any]:
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    return _keys(own, "gemma2", 4096) | {key: own[key] for key in caps if key in own}


def _gemma3_keys(own: dict[str, Any]) -> dict[str, Any]:
    return _keys(own, "gemma3", 512) | {
        "rope_local_base_freq": float(own.get("rope.freq_base_swa", 10000.0)),
        "rope_theta": float(own.get("rope.freq_base", 1000000.0)),
    }


def _keys(own: dict[str, Any], architecture: str, window: int) -> dict[str, Any]:
    """The 27B models scale scores by the hidden size for each head, all others by a head's size."""
    size = own["attention.key_length"]
    if own["block_count"] == _LAYERS_OF_27B[architecture]:
        size = own["embedding_length"] // own["attention.head_count"]
    return {"query_pre_attn_scalar": size, "sliding_window": own.get("attention.sliding_window", window)}


_GEMMA2_GGUF = Gguf("gemma2", _GGUF_NAMES, norms_as_used=True, keys=_gemma2_keys)
_GEMMA3_GGUF = Gguf("gemma3", _GGUF_NAMES, norms_as_used=True, keys=_gemma3_keys)


# Gemma 3n: several residual streams (AltUp), an input of each layer's own, and last layers that read earlier KV.


def read_gemma3n(config: dict[str, Any]) -> ModelDescription:
    """transformers: Gemma3nTextModel. Its norms' weights are stored as they are."""
    kinds = by_period(config, 5)
    first_shared = len(kinds) - int(config.get("num_kv_shared_layers", 15))
    sizes = config.get("intermediate_size", 16384)
    sizes = sizes if isinstance(sizes, list) else [sizes] * len(kinds)
    return decoder(
        config,
        norms(config, "rms", "both"),
        [_gemma3n_attention(config, kind, read_layer(kinds, i, first_shared)) for i, kind in enumerate(kinds)],
        [mlp(config, int(sizes[i]), activation="gelu_tanh", bias=False) for i in range(len(kinds))],
        shapes=layer_shapes(config),
        layer_inputs=layer_inputs(config),
        others=_streams(config),
        **_ends(config, cap=30.0),
    )


def read_layer(kinds: list[str], index: int, first_shared: int) -> int | None:
    """The layer whose keys and values layer ``index`` reads: the last unshared one of its kind."""
    if index < first_shared or first_shared <= 0:
        return None
    return max(layer for layer in range(first_shared) if kinds[layer] == kinds[index])


def layer_inputs(config: dict[str, Any]) -> LayerInputs:
    """The second embedding."""
    size = int(config.get("hidden_size_per_layer_input", 256))
    return LayerInputs(int(config.get("vocab_size_per_layer_input", 262144)), size)


def layer_shapes(config: dict[str, Any]) -> tuple[Shape, ...]:
    """AltUp's mixing of the streams, the low-rank residual block beside attention (LAuReL), and what adds its input."""
    hidden, streams = int(config["hidden_size"]), int(config.get("altup_num_inputs", 4))
    rank, size = int(config.get("laurel_rank", 64)), layer_inputs(config).size
    return (
        Shape("altup.correct_output_scale", (hidden,)),
        Shape("altup.correction_coefs", (streams, streams)),
        Shape("altup.prediction_coefs", (streams**2, streams)),
        Shape("altup.modality_router", (streams, hidden)),
        Shape("altup.router_norm", (hidden,)),
        Shape("laurel.linear_left", (rank, hidden)),
        Shape("laurel.linear_right", (hidden, rank)),
        Shape("laurel.post_laurel_norm", (hidden,)),
        Shape("per_layer_input_gate", (size, hidden)),
        Shape("per_layer_projection", (hidden, size)),
        Shape("post_per_layer_input_norm", (hidden,)),
    )


def _streams(config: dict[str, Any]) -> tuple[Shape, ...]:
    hidden, further = int(config["hidden_size"]), int(config.get("altup_num_inputs", 4)) - 1
    return (
        Shape("altup_projections", (further, hidden, hidden)),
        Shape("altup_unembed_projections", (further, hidden, hidden)),
    )


def _gemma3n_attention(config: dict[str, Any], kind: str, reads_layer: int | None) -> Attention:
    size = int(config.get("head_dim", 256))
    return attention(
        config,
        kept=window(config, kind, 512),
        size=size,
        rope=rope(config, size, kind, theta=1000000.0 if kind == "full_attention" else 10000.0),
        scale=1.0,
        head_norm="head",
        reads_layer=reads_layer,
    )


# Gemma 4: full layers have larger heads and values that are the keys; a mixture may stand beside the MLP.

_GEMMA4_NAMES = TensorNames(
    mlp_norm="pre_feedforward_layernorm",
    inside={
        "router": "router.proj",
        "router_scale": "router.scale",
        "expert_scale": "router.per_expert_scale",
        "experts.up": "experts.gate_up_proj",
        "experts.down": "experts.down_proj",
        "shared.up": ("mlp.gate_proj", "mlp.up_proj"),
        "shared.down": "mlp.down_proj",
        "experts_norm": "pre_feedforward_layernorm_2",
        "experts_post_norm": "post_feedforward_layernorm_2",
        "shared_post_norm": "post_feedforward_layernorm_1",
        "layer_inputs.embedding": "model.embed_tokens_per_layer",
        "layer_inputs.projection": "model.per_layer_model_projection",
        "layer_inputs.norm": "model.per_layer_projection_norm",
        "input_gate": "per_layer_input_gate",
        "input_output": "per_layer_projection",
        "input_norm": "post_per_layer_input_norm",
        "layer_scale": "layer_scalar",
    },
    experts="rows",
)


def read_gemma4(config: dict[str, Any]) -> ModelDescription:
    """transformers: Gemma4TextModel."""
    config = _with_global_sizes(config)
    norm = norms(config, "rms", "both")
    kinds = [*by_period(config, 6)[:-1], "full_attention"]  # the last layer is full, whatever the config says
    first_shared = len(kinds) - int(config.get("num_kv_shared_layers", 0))
    inputs, layers = layer_inputs(config), []
    for index, kind in enumerate(kinds):
        reads = read_layer(kinds, index, first_shared) if first_shared < len(kinds) else None
        part = _feed_forward(config, double=reads is not None)
        layers.append(Layer((_gemma4_attention(config, kind, reads),), part, norm, end=LayerEnd(inputs.size)))
    ends = {"layer_inputs": inputs if inputs.size else None, **_ends(config)}
    return model(config, layers, norm, max_positions=131072, **ends)


def _with_global_sizes(config: dict[str, Any]) -> dict[str, Any]:
    """Add the full layers' sizes by their old names: newer configs list them layer by layer. The last one is full."""
    names = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
    listed = config.get("per_layer_config") or {}
    last = listed.get(str(int(config["num_hidden_layers"]) - 1)) or {}
    return {**config, **{names[key]: value for key, value in last.items() if key in names}}


def _gemma4_attention(config: dict[str, Any], kind: str, reads_layer: int | None) -> Attention:
    full = kind == "full_attention"
    same = full and bool(config.get("attention_k_eq_v", False))
    kv_heads = (config.get("num_global_key_value_heads") if same else None) or config["num_key_value_heads"]
    size = int(config.get("global_head_dim", 512) if full else config.get("head_dim", 256))
    return attention(
        config,
        kept=window(config, kind, 512),
        size=size,
        rope=_full_rope(config, size) if full else rope(config, size, kind, theta=10000.0),
        num_kv_heads=int(kv_heads),
        scale=1.0,
        head_norm="head",
        reads_layer=reads_layer,
        value_is_key=same,
        value_norm=True,
    )


def _full_rope(config: dict[str, Any], size: int) -> Rope:
    """Frequencies of the full layers' heads of ``size``: the first pairs alone turn, at their pace in a whole head."""
    parameters = (config.get("rope_parameters") or {}).get("full_attention") or {}
    kind = parameters.get("rope_type", "proportional")
    share = parameters.get("partial_rotary_factor", 0.25) if kind == "proportional" else 1.0
    scaling = {"rope_type": kind, "factor": parameters.get("factor", 1.0), "partial_rotary_factor": float(share)}
    return Rope(float(parameters.get("rope_theta", 1000000.0)), size, scaling=scaling)


def _feed_forward(config: dict[str, Any], *, double: bool) -> FeedForward:
    """An MLP, which a mixture stands beside; of layers that read earlier KV it may be twice as wide."""
    wide = double and bool(config.get("use_double_wide_mlp", False))
    plain = mlp(config, int(config["intermediate_size"]) * (2 if wide else 1), activation="gelu_tanh", bias=False)
    if not config.get("enable_moe_block", False):
        return plain
    expert = mlp(config, int(config["moe_intermediate_size"]), activation="gelu_tanh", bias=False)
    return Mixture(int(config["num_experts"]), int(config["top_k_experts"]), expert, shared=plain, apart=True)


_NAMES = TensorNames(mlp_norm="pre_feedforward_layernorm")

GEMMA = (
    Family(("Gemma2ForCausalLM",), read_gemma2, _NAMES, gguf=_GEMMA2_GGUF),
    Family(("Gemma3ForCausalLM",), read_gemma3, _NAMES, gguf=_GEMMA3_GGUF),
    Family(("VaultGemmaForCausalLM",), read_vaultgemma),
    Family(("Rnj1ForCausalLM",), read_rnj1),
    Family(("Gemma3nForCausalLM",), read_gemma3n),
    Family(("Gemma4ForCausalLM",), read_gemma4, _GEMMA4_NAMES),
)

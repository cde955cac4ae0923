"""Families with keys of their own: learned positions, slopes (ALiBi), LayerNorm with biases, an MLP without a gate.

TeleChat 2 and Step 1, which are described and not run, come last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.readers import LlamaLike, llama
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import activation, attention, decoder, mlp, rope, window
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.mixers import Rope
from kvplan_engine.description.model import Layer, ModelDescription, Shape
from kvplan_engine.description.norms import NormPlaces, Norms
from kvplan_engine.errors import EngineError


def _falcon_places(config: dict[str, Any], grouped: bool) -> NormPlaces:
    if not grouped and not config.get("parallel_attn", True):
        return "before"
    number = config.get("num_ln_in_parallel_attn") or (2 if grouped else 1)
    return "parallel_two" if grouped and int(number) == 2 else "parallel"


def _falcon_kv_heads(config: dict[str, Any], grouped: bool, heads: int) -> int:
    if grouped:
        return int(config.get("num_kv_heads") or config.get("n_head_kv") or heads)
    return 1 if config.get("multi_query", True) else heads


def _falcon(config: dict[str, Any]) -> ModelDescription:
    """Falcon 7B (one KV head), 11B, 40B and 180B (groups); the small ones that were trained with slopes (ALiBi)."""
    hidden = int(config["hidden_size"])
    heads = int(config.get("num_attention_heads") or config["n_head"])
    grouped = bool(config.get("new_decoder_architecture", False))
    keys = config | {"num_attention_heads": heads, "num_key_value_heads": _falcon_kv_heads(config, grouped, heads)}
    keys["intermediate_size"] = int(config.get("ffn_hidden_size") or 4 * hidden)
    norms = Norms("layer", float(config.get("layer_norm_epsilon", 1e-5)), _falcon_places(config, grouped))
    bias, alibi = bool(config.get("bias", False)), bool(config.get("alibi", False))
    own = attention(keys, rope=None if alibi else rope(keys), alibi=alibi, qkv_bias=bias, output_bias=bias)
    own = replace(own, alibi_scale=own.scale)  # slopes are added to the scores before these are scaled
    inner = mlp(keys, activation=activation(config.get("activation", "gelu")), gated=False, bias=bias)
    number = int(config.get("num_hidden_layers") or config["n_layer"])
    return decoder(keys, [Layer((own,), inner, norms)] * number, norms, tied=True)


_FUSED_NAMES = TensorNames(
    embedding="transformer.word_embeddings",
    layer="transformer.h.{}",
    qkv=("self_attention.query_key_value",),
    output="self_attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    final_norm="transformer.ln_f",
    row_order="kv_heads",
)
FALCON = Family(
    architectures=("FalconForCausalLM", "RWForCausalLM"),
    read=_falcon,
    names=replace(_FUSED_NAMES, by_places={"parallel_two": {"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"}}),
)


def _phi(config: dict[str, Any]) -> ModelDescription:
    """Phi-1 and 2: attention and MLP side by side behind one LayerNorm, biases everywhere, also on the head."""
    keys = {"intermediate_size": 4 * int(config["hidden_size"])} | config
    norms = Norms("layer", float(config.get("layer_norm_eps", 1e-5)), "parallel")
    head_norm = "head" if config.get("qk_layernorm") else "none"
    own = attention(keys, rope=rope(keys, partial=0.5), qkv_bias=True, output_bias=True, head_norm=head_norm)
    inner = mlp(keys, activation=activation(config.get("hidden_act", "gelu_new")), gated=False, bias=True)
    layers = [Layer((own,), inner, norms)] * int(config["num_hidden_layers"])
    return decoder(keys, layers, norms, head_bias=True)


PHI = Family(
    architectures=("PhiForCausalLM",),
    read=_phi,
    names=TensorNames(
        output="self_attn.dense",
        up=("mlp.fc1",),
        down="mlp.fc2",
        query_norm="self_attn.q_layernorm",
        key_norm="self_attn.k_layernorm",
        final_norm="model.final_layernorm",
    ),
)


def _starcoder2(config: dict[str, Any]) -> ModelDescription:
    """StarCoder 2: LayerNorm, biases everywhere, an MLP without a gate, a sliding window in every layer."""
    bias = bool(config.get("use_bias", True))
    norms = Norms("layer", float(config.get("norm_epsilon", 1e-5)))
    kept = window(config.get("sliding_window"))
    own = attention(config, rope=rope(config), kept=kept, qkv_bias=bias, output_bias=bias)
    inner = mlp(config, activation=activation(config.get("hidden_act", "gelu_pytorch_tanh")), gated=False, bias=bias)
    layers = [Layer((own,), inner, norms)] * int(config["num_hidden_layers"])
    return decoder(config, layers, norms, max_positions=4096, tied=True)


STARCODER2 = Family(
    architectures=("Starcoder2ForCausalLM",), read=_starcoder2, names=TensorNames(up=("mlp.c_fc",), down="mlp.c_proj")
)


def _gpt_keys(config: dict[str, Any]) -> dict[str, Any]:
    """GPT-2's keys, which others took over, under Llama's names."""
    hidden, heads = int(config["n_embd"]), int(config["n_head"])
    if hidden % heads:
        raise ValueError(f"n_embd {hidden} is not a multiple of n_head {heads}")
    positions = int(config.get("n_positions") or config["n_ctx"])
    own = {"hidden_size": hidden, "num_attention_heads": heads, "max_position_embeddings": positions}
    return config | own | {"intermediate_size": int(config.get("n_inner") or 4 * hidden)}


def _gpt2(config: dict[str, Any], act: str = "gelu_new", **own: Any) -> ModelDescription:
    """GPT-2: learned positions, LayerNorm, biases everywhere, an MLP without a gate. act: the default."""
    keys = _gpt_keys(config) | own
    norms = Norms("layer", float(config.get("layer_norm_epsilon", 1e-5)))
    inner = mlp(keys, activation=activation(config.get("activation_function", act)), gated=False, bias=True)
    layer = Layer((attention(keys, rope=None, qkv_bias=True, output_bias=True),), inner, norms)
    positions = keys["max_position_embeddings"]
    return decoder(keys, [layer] * int(config["n_layer"]), norms, tied=True, learned_positions=positions)


_GPT_NAMES = TensorNames(
    embedding="transformer.wte",
    positions="transformer.wpe",
    layer="transformer.h.{}",
    qkv=("attn.c_attn",),
    output="attn.c_proj",
    up=("mlp.c_fc",),
    down="mlp.c_proj",
    attention_norm="ln_1",
    mlp_norm="ln_2",
    final_norm="transformer.ln_f",
)
GPT2 = Family(
    architectures=("GPT2LMHeadModel",),
    read=_gpt2,
    names=replace(_GPT_NAMES, embedding="wte", positions="wpe", layer="h.{}", final_norm="ln_f", transposed=True),
    prefixes=("", "transformer."),
)


def _gpt_bigcode(config: dict[str, Any]) -> ModelDescription:
    """StarCoder and SantaCoder: GPT-2 with one KV head for all query heads."""
    kv_heads = 1 if config.get("multi_query", True) else config["n_head"]
    return _gpt2(config, "gelu_pytorch_tanh", num_key_value_heads=kv_heads)


GPT_BIGCODE = Family(
    architectures=("GPTBigCodeForCausalLM",),
    read=_gpt_bigcode,
    names=replace(_GPT_NAMES, row_order="kv_heads"),
)


def _gpt_neox(config: dict[str, Any]) -> ModelDescription:
    """GPT-NeoX and Pythia: attention and MLP side by side behind a norm each, biases, a quarter of each head turns."""
    parallel = bool(config.get("use_parallel_residual", True))
    norms = Norms("layer", float(config.get("layer_norm_eps", 1e-5)), "parallel_two" if parallel else "before")
    positions = rope(config, theta=float(config.get("rotary_emb_base", 10000)), partial=config.get("rotary_pct", 0.25))
    keys = config | {"num_key_value_heads": None}
    bias = bool(config.get("attention_bias", True))
    own = attention(keys, rope=positions, qkv_bias=bias, output_bias=bias)
    inner = mlp(config, activation=activation(config.get("hidden_act", "gelu")), gated=False, bias=True)
    return decoder(config, [Layer((own,), inner, norms)] * int(config["num_hidden_layers"]), norms)


GPT_NEOX = Family(
    architectures=("GPTNeoXForCausalLM",),
    read=_gpt_neox,
    names=replace(
        _FUSED_NAMES,
        embedding="gpt_neox.embed_in",
        layer="gpt_neox.layers.{}",
        qkv=("attention.query_key_value",),
        output="attention.dense",
        final_norm="gpt_neox.final_layer_norm",
        head="embed_out",
    ),
)


def _gptj(config: dict[str, Any]) -> ModelDescription:
    """GPT-J, CodeGen: attention and MLP side by side behind one norm; neighbours turn in part of a head; head bias."""
    keys = _gpt_keys(config)
    norms = Norms("layer", float(config.get("layer_norm_epsilon", 1e-5)), "parallel")
    size = keys["hidden_size"] // keys["num_attention_heads"]
    positions = Rope(10000.0, min(int(config.get("rotary_dim") or 64), size), neighbours=True)
    inner = mlp(keys, activation=activation(config.get("activation_function", "gelu_new")), gated=False, bias=True)
    layer = Layer((attention(keys, rope=positions),), inner, norms)
    return decoder(keys, [layer] * int(config["n_layer"]), norms, head_bias=True)


GPTJ_NAMES = TensorNames(
    embedding="transformer.wte",
    layer="transformer.h.{}",
    qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    output="attn.out_proj",
    up=("mlp.fc_in",),
    down="mlp.fc_out",
    attention_norm="ln_1",
    final_norm="transformer.ln_f",
)

GPTJ = Family(architectures=("GPTJForCausalLM",), read=_gptj, names=GPTJ_NAMES)
CODEGEN = Family(
    architectures=("CodeGenForCausalLM",),
    read=_gptj,
    names=replace(GPTJ_NAMES, qkv=("attn.qkv_proj",), row_order="quarters"),
)


def _bloom(config: dict[str, Any]) -> ModelDescription:
    """BLOOM: slopes instead of positions (ALiBi), a norm behind the embedding, biases everywhere."""
    hidden = int(config.get("hidden_size") or config["n_embed"])
    heads = int(config.get("num_attention_heads") or config["n_head"])
    keys = config | {"hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": 4 * hidden}
    keys.pop("num_key_value_heads", None)
    norms = Norms("layer", float(config.get("layer_norm_epsilon", 1e-5)))
    own = attention(keys, rope=None, alibi=True, qkv_bias=True, output_bias=True)
    inner = mlp(keys, activation="gelu_tanh", gated=False, bias=True)
    number = int(config.get("num_hidden_layers") or config["n_layer"])
    positions = int(config.get("seq_length") or 2048)
    layers = [Layer((own,), inner, norms)] * number
    return decoder(keys, layers, norms, max_positions=positions, tied=True, embedding_norm=True)


BLOOM = Family(
    architectures=("BloomForCausalLM",),
    read=_bloom,
    names=replace(
        _FUSED_NAMES,
        embedding="word_embeddings",
        embedding_norm="word_embeddings_layernorm",
        layer="h.{}",
        final_norm="ln_f",
    ),
    prefixes=("", "transformer."),
)


def _mpt(config: dict[str, Any]) -> ModelDescription:
    """MPT: slopes instead of positions (ALiBi), LayerNorm without biases; no bias anywhere."""
    hidden, heads = int(config["d_model"]), int(config["n_heads"])
    inner_config = config.get("attn_config") or {}
    positions = int(config["max_seq_len"])
    own = {"hidden_size": hidden, "num_attention_heads": heads, "max_position_embeddings": positions}
    own["num_key_value_heads"] = int(inner_config.get("kv_n_heads") or heads)
    keys = config | own | {"intermediate_size": int(config.get("expansion_ratio", 4)) * hidden}
    norms = Norms("layer_no_bias", float(config.get("layer_norm_epsilon", 1e-5)))
    alibi, scale = bool(inner_config.get("alibi", True)), inner_config.get("softmax_scale")
    clip = inner_config.get("clip_qkv") or None
    options = {"alibi": alibi, "clip": clip} | ({"scale": float(scale)} if scale else {})
    layer = Layer((attention(keys, rope=None, **options),), mlp(keys, activation="gelu", gated=False), norms)
    rows = None if alibi else positions
    return decoder(keys, [layer] * int(config["n_layers"]), norms, tied=True, learned_positions=rows)


MPT = Family(
    architectures=("MPTForCausalLM", "MptForCausalLM"),
    read=_mpt,
    names=TensorNames(
        embedding="transformer.wte",
        positions="transformer.wpe",
        layer="transformer.blocks.{}",
        qkv=("attn.Wqkv",),
        output="attn.out_proj",
        up=("ffn.up_proj",),
        down="ffn.down_proj",
        attention_norm="norm_1",
        mlp_norm="norm_2",
        final_norm="transformer.norm_f",
    ),
)


_OFFSET = 2
"""Rows of the table of positions before that of position 0."""


def _opt(config: dict[str, Any]) -> ModelDescription:
    """OPT: learned positions behind two unused rows, LayerNorm, biases everywhere, ReLU without a gate."""
    hidden = config["hidden_size"]
    bias, is_learned = bool(config.get("enable_bias", True)), config.get("layer_norm_elementwise_affine", True)
    if not config.get("do_layer_norm_before", True) or config.get("word_embed_proj_dim", hidden) != hidden:
        raise EngineError("the engine does not know OPT with norms on the residual stream or a narrow embedding.")
    keys = config | {"intermediate_size": int(config["ffn_dim"]), "num_key_value_heads": None}
    norms = Norms("layer" if is_learned else "none", 1e-5)
    act = activation(config.get("activation_function", "relu"))
    own = attention(keys, rope=None, qkv_bias=bias, output_bias=bias)
    layer = Layer((own,), mlp(keys, activation=act, gated=False, bias=bias), norms)
    return decoder(
        keys,
        [layer] * int(config["num_hidden_layers"]),
        norms,
        tied=True,
        learned_positions=int(config["max_position_embeddings"]) + _OFFSET,
        position_offset=_OFFSET,
    )


OPT = Family(
    architectures=("OPTForCausalLM",),
    read=_opt,
    names=TensorNames(
        embedding="decoder.embed_tokens",
        positions="decoder.embed_positions",
        layer="decoder.layers.{}",
        output="self_attn.out_proj",
        up=("fc1",),
        down="fc2",
        attention_norm="self_attn_layer_norm",
        mlp_norm="final_layer_norm",
        final_norm="decoder.final_layer_norm",
        head="lm_head",
    ),
    prefixes=("model.", ""),
)


OWN_KEYS = (FALCON, PHI, STARCODER2, GPT2, GPT_BIGCODE, GPT_NEOX, GPTJ, CODEGEN, BLOOM, MPT, OPT)


_TELECHAT_KEYS = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "ffn_hidden_size",
    "max_position_embeddings": "seq_length",
}


# Decoders of attention and an MLP that the engine describes and does not run: TeleChat 2 and Step 1.


def read_telechat2(config: Mapping[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/telechat2.py): the last matrix of each block has a bias."""
    if config.get("embed_layernorm"):
        raise EngineError("the engine does not know TeleChat's norm behind the embedding (embed_layernorm).")
    named = {ours: config[theirs] for ours, theirs in _TELECHAT_KEYS.items() if config.get(theirs) is not None}
    keys = {**named, **{key: value for key, value in config.items() if value is not None}}
    attention = {"qkv_bias": False, "output_bias": True}
    like = LlamaLike(attention=attention, mlp={"bias": False}, max_positions=None, model={"tied": True})
    found = like(keys)
    layer = replace(found.layers[0], others=(Shape("mlp.down.bias", (found.hidden_size,)),))
    return replace(found, layers=(layer,) * found.num_layers)


def read_step1(config: Mapping[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/step1.py): slopes in place of positions, groups of heads."""
    groups = config.get("num_attention_groups") or config.get("num_key_value_heads") or 1
    keys = {"tie_word_embeddings": True, **config, "num_key_value_heads": groups, "head_dim": None}
    keys["max_position_embeddings"] = config.get("max_position_embeddings") or config.get("max_seq_len")
    return replace(llama(keys, rope=None, alibi=True), max_position_embeddings=keys["max_position_embeddings"])


DESCRIBED = (
    Family(("TeleChat2ForCausalLM",), read_telechat2),
    Family(("Step1ForCausalLM",), read_step1),
)

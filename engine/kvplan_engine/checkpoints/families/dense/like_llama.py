"""Families that are read as Llama is: a row for each says what differs. What a row cannot say is in ``readers``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.dense.readers import (
    MISTRAL_WINDOW,
    SOLAR_WINDOW,
    LlamaLike,
    factor,
    gemma_activation,
    phi3_gguf,
    read_baichuan,
    read_chatglm,
    read_exaone,
    read_ministral,
    read_ministral3,
    read_pangu,
    read_qwen,
    read_qwen2,
    read_qwen3,
    read_smollm3,
    read_window,
    said,
    stretched_rope,
)
from kvplan_engine.checkpoints.families.family import LLAMA_CPP_NAMES, Family, Gguf
from kvplan_engine.checkpoints.fields import head_size, rope, window
from kvplan_engine.checkpoints.tensor_names import TensorNames

Config = Mapping[str, Any]
_RMS = {"rms_norm_eps": 1e-5}
_GLM = LlamaLike(
    defaults={"head_dim": 128, "attention_bias": True, "rms_norm_eps": 1.5625e-07},
    rope={"partial": 0.5, "neighbours": True},
    attention={"output_bias": False},
    mlp={"bias": False},
    max_positions=131072,
)
_FACTORS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
LLAMA = Family(
    architectures=(
        *("LlamaForCausalLM", "LLaMAForCausalLM", "AquilaForCausalLM"),
        *("IQuestCoderForCausalLM", "TeleChat3ForCausalLM"),
    ),
    read=LlamaLike(),
    names=TensorNames(),
    gguf=Gguf("llama", pairs_side_by_side=True, may_have_attention_bias=True),
)
CHATGLM = Family(
    architectures=("ChatGLMModel", "ChatGLMForConditionalGeneration"),
    read=read_chatglm,
    names=TensorNames(
        embedding="transformer.embedding.word_embeddings",
        layer="transformer.encoder.layers.{}",
        qkv=("self_attention.query_key_value",),
        output="self_attention.dense",
        up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
        final_norm="transformer.encoder.final_layernorm",
        head="transformer.output_layer",
    ),
)
_USE_BIAS = {"qkv_bias": said("use_bias"), "output_bias": said("use_bias")}
_PHI3 = LlamaLike(attention={"kept": read_window, "qkv_bias": False, "output_bias": False}, max_positions=4096)

LIKE_LLAMA = (
    LLAMA,
    # Activations have factors that the engine does not know: it is described and not run.
    Family(("TeleFLMForCausalLM",), LlamaLike()),
    # Norms of each query and key head, and an MLP with xIELU and no gate.
    Family(
        architectures=("ApertusForCausalLM",),
        read=LlamaLike(
            defaults=_RMS | {"hidden_act": "xielu"},
            rope={"theta": 12000000.0},
            attention={"head_norm": "head"},
            mlp={"gated": False, "bias": False},
            max_positions=65536,
        ),
        names=TensorNames(
            up=("mlp.up_proj",),
            attention_norm="attention_layernorm",
            mlp_norm="feedforward_layernorm",
            inside={"activation.alpha_p": "mlp.act_fn.alpha_p", "activation.alpha_n": "mlp.act_fn.alpha_n"},
        ),
    ),
    # A squared ReLU and no gate.
    Family(
        ("ArceeForCausalLM",),
        LlamaLike(defaults=_RMS | {"hidden_act": "relu2"}, mlp={"gated": False}, max_positions=4096),
        TensorNames(up=("mlp.up_proj",)),
    ),
    # One matrix for queries, keys and values.
    Family(("BaichuanForCausalLM", "BaiChuanForCausalLM"), read_baichuan, TensorNames(qkv=("self_attn.W_pack",))),
    CHATGLM,
    # Attention and MLP side by side behind one LayerNorm without a bias; neighbours turn; scaled logits.
    Family(
        ("CohereForCausalLM",),
        LlamaLike(
            rope={"theta": 500000.0, "neighbours": True},
            attention={"head_norm": lambda config: "per_head" if config.get("use_qk_norm") else "none"},
            norm=("layer_no_bias", "layer_norm_eps", 1e-5),
            places="parallel",
            max_positions=8192,
            model={"tied": True, "logits_scale": factor("logit_scale", 0.0625)},
        ),
        TensorNames(),
    ),
    # Neighbours turn; one switch for all biases.
    Family(
        ("Ernie4_5ForCausalLM",),
        LlamaLike(
            defaults=_RMS | {"head_dim": 128},
            rope={"theta": 500000.0, "neighbours": True},
            attention=_USE_BIAS,
            mlp={"bias": said("use_bias")},
            max_positions=131072,
            model={"tied": True},
        ),
        TensorNames(),
    ),
    Family(
        architectures=("ExaoneForCausalLM",),
        read=read_exaone,
        names=TensorNames(
            embedding="transformer.wte",
            layer="transformer.h.{}",
            qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
            output="attn.attention.out_proj",
            up=("mlp.c_fc_0", "mlp.c_fc_1"),
            down="mlp.c_proj",
            attention_norm="ln_1",
            mlp_norm="ln_2",
            final_norm="transformer.ln_f",
        ),
    ),
    # Wide heads, GELU in the gate, norms whose weights are stored minus one, a scaled embedding.
    Family(
        ("GemmaForCausalLM",),
        LlamaLike(
            defaults={"head_dim": 256},
            norm=("rms_plus_one", "rms_norm_eps", 1e-6),
            mlp={"activation": gemma_activation, "bias": False},
            max_positions=8192,
            model={"tied": True, "embedding_scale": lambda config: int(config["hidden_size"]) ** 0.5},
        ),
        TensorNames(),
    ),
    # Half of a head turns, neighbours paired; GLM-4-0414 has norms behind the blocks too.
    Family(("GlmForCausalLM",), _GLM, TensorNames(up=("mlp.gate_up_proj",))),
    Family(
        architectures=("Glm4ForCausalLM",),
        read=replace(_GLM, places="both"),
        names=TensorNames(
            up=("mlp.gate_up_proj",),
            attention_post_norm="post_self_attn_layernorm",
            mlp_norm="post_attention_layernorm",
            mlp_post_norm="post_mlp_layernorm",
        ),
    ),
    # Factors on the embedding, the scores, each block's output and the logits.
    Family(
        ("GraniteForCausalLM",),
        LlamaLike(
            attention={"scale": factor("attention_multiplier")},
            residual_scale=factor("residual_multiplier"),
            model={
                "embedding_scale": factor("embedding_multiplier"),
                "logits_scale": lambda config: 1.0 / float(config.get("logits_scaling", 1.0)),
            },
        ),
        TensorNames(),
        gguf=Gguf(
            "granite",
            pairs_side_by_side=True,
            keys=lambda own: {name: own[key] for key, name in _FACTORS.items() if key in own},
        ),
    ),
    # Neighbours turn.
    Family(
        ("HeliumForCausalLM",),
        LlamaLike(
            defaults={"head_dim": 128, "rms_norm_eps": 1e-8},
            rope={"theta": 100000.0, "neighbours": True},
            attention={"output_bias": False},
            max_positions=4096,
        ),
        TensorNames(),
    ),
    # Norms of each query and key head behind RoPE, whose base ``alpha`` stretches.
    Family(
        ("HunYuanDenseV1ForCausalLM",),
        LlamaLike(defaults=_RMS, attention={"rope": stretched_rope, "head_norm": "head", "norm_after_rope": True}),
        TensorNames(query_norm="self_attn.query_layernorm", key_norm="self_attn.key_layernorm"),
    ),
    # Granite's factors, and in some models norms behind the blocks too.
    Family(
        architectures=("HyperCLOVAXForCausalLM",),
        read=LlamaLike(
            attention={"scale": lambda config: float(config.get("attention_multiplier") or head_size(config) ** -0.5)},
            places=lambda config: "both" if config.get("use_post_norm", True) else "before",
            residual_scale=lambda config: float(config.get("residual_multiplier") or 1.0),
            model={
                "embedding_scale": lambda config: float(config.get("embedding_multiplier") or 1.0),
                "logits_scale": lambda config: float(config.get("logits_scaling") or 1.0),
            },
        ),
        names=TensorNames(
            attention_post_norm="post_norm1", mlp_norm="post_attention_layernorm", mlp_post_norm="post_norm2"
        ),
    ),
    # One matrix of groups for queries, keys and values.
    Family(
        architectures=("InternLM2ForCausalLM",),
        read=LlamaLike(attention={"qkv_bias": said("bias"), "output_bias": said("bias")}),
        names=TensorNames(
            embedding="model.tok_embeddings",
            qkv=("attention.wqkv",),
            output="attention.wo",
            up=("feed_forward.w1", "feed_forward.w3"),
            down="feed_forward.w2",
            attention_norm="attention_norm",
            mlp_norm="ffn_norm",
            head="output",
            row_order="kv_heads",
        ),
    ),
    # Biases by two switches.
    Family(
        ("InternLM3ForCausalLM",),
        LlamaLike(
            defaults={"head_dim": 128},
            attention={"qkv_bias": said("qkv_bias"), "output_bias": said("bias")},
            mlp={"bias": said("bias")},
            max_positions=32768,
        ),
        TensorNames(),
    ),
    # LayerNorm, biases, a squared ReLU without a gate. It is described and not run.
    Family(
        ("Jais2ForCausalLM",),
        LlamaLike(
            defaults={"attention_bias": True, "mlp_bias": True, "hidden_act": "relu2"},
            mlp={"gated": False},
            norm=("layer", "layer_norm_eps", 1e-5),
            max_positions=8192,
        ),
    ),
    # Biases on queries, keys and values.
    Family(("MiMoForCausalLM",), read_qwen2, TensorNames()),
    # Factors on the embedding, each block's output and the logits.
    Family(
        ("MiniCPMForCausalLM",),
        LlamaLike(
            residual_scale=lambda config: (
                float(config.get("scale_depth", 1.0)) / int(config["num_hidden_layers"]) ** 0.5
            ),
            model={
                "tied": True,
                "embedding_scale": factor("scale_emb"),
                "logits_scale": lambda config: (
                    float(config.get("dim_model_base") or config["hidden_size"]) / int(config["hidden_size"])
                ),
            },
        ),
        TensorNames(),
    ),
    Family(("MinistralForCausalLM",), read_ministral, TensorNames()),
    Family(("Ministral3ForCausalLM",), read_ministral3, TensorNames()),
    # A sliding window in every layer; null is none. Its GGUF files say ``llama``.
    Family(
        ("MistralForCausalLM",),
        LlamaLike(
            attention={"kept": lambda config: window(config.get("sliding_window", MISTRAL_WINDOW))},
            max_positions=131072,
        ),
        TensorNames(),
    ),
    # LayerNorm whose weight is stored minus one, squared ReLU without a gate, half of a head turns.
    Family(
        ("NemotronForCausalLM",),
        LlamaLike(
            defaults={"hidden_act": "relu2"},
            attention={"rope": lambda config: rope(config, partial=float(config.get("rope_percent") or 0.5))},
            mlp={"gated": False},
            norm=("layer_plus_one", "norm_eps", 1e-5),
            max_positions=4096,
        ),
        TensorNames(up=("mlp.up_proj",)),
    ),
    # A LayerNorm that has no parameters.
    Family(
        ("OlmoForCausalLM",),
        LlamaLike(attention={"clip": lambda config: config.get("clip_qkv")}, norm=("none", "", 1e-5)),
        TensorNames(),
    ),
    # Norms behind the blocks, and across all heads.
    Family(
        ("Olmo2ForCausalLM",),
        LlamaLike(attention={"head_norm": "all"}, norm=("rms", "rms_norm_eps", 1e-5), places="after"),
        TensorNames(),
        gguf=Gguf(
            "olmo2", replace(LLAMA_CPP_NAMES, attention_post_norm="post_attention_norm", mlp_post_norm="post_ffw_norm")
        ),
    ),
    # LayerNorm.
    Family(("OrionForCausalLM",), LlamaLike(norm=("layer", "rms_norm_eps", 1e-5), max_positions=4096), TensorNames()),
    # Biases by keys of its own, in some with norms behind the blocks. It is not run.
    Family(("PanguEmbeddedForCausalLM",), read_pangu),
    # Fused projections; in some models part of a head turns, in some there is a window.
    Family(
        architectures=("Phi3ForCausalLM",),
        read=_PHI3,
        names=TensorNames(qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",)),
        gguf=Gguf("phi3", replace(LLAMA_CPP_NAMES, qkv=("attn_qkv",), up=("ffn_up",)), keys=phi3_gguf),
    ),
    # Its checkpoints keep adapters for images and speech beside the text's weights, which text does without.
    Family(
        architectures=("Phi4MMForCausalLM",),
        read=_PHI3,
        names=TensorNames(
            qkv=("self_attn.qkv_proj.base_layer",),
            output="self_attn.o_proj.base_layer",
            up=("mlp.gate_up_proj.base_layer",),
            down="mlp.down_proj.base_layer",
        ),
    ),
    # Fused projections, a bias on queries, keys and values, and names of its own.
    Family(
        architectures=("QWenLMHeadModel",),
        read=read_qwen,
        names=TensorNames(
            embedding="transformer.wte",
            layer="transformer.h.{}",
            qkv=("attn.c_attn",),
            output="attn.c_proj",
            up=("mlp.w2", "mlp.w1"),
            down="mlp.c_proj",
            attention_norm="ln_1",
            mlp_norm="ln_2",
            final_norm="transformer.ln_f",
        ),
    ),
    # Biases on queries, keys and values; Qwen3 has norms of each query and key head instead.
    Family(("Qwen2ForCausalLM",), read_qwen2, TensorNames(), gguf=Gguf("qwen2")),
    Family(("Qwen3ForCausalLM",), read_qwen3, TensorNames(), gguf=Gguf("qwen3")),
    # Biases on queries, keys and values.
    Family(
        ("SeedOssForCausalLM",),
        LlamaLike(
            filled={"head_dim": 128},
            attention={"qkv_bias": said("attention_bias", True), "output_bias": said("attention_out_bias")},
            max_positions=524288,
        ),
        TensorNames(),
    ),
    Family(("SmolLM3ForCausalLM",), read_smollm3, TensorNames()),
    # A window, and residuals that skip blocks of layers. It is described and not run.
    Family(
        ("SolarForCausalLM",),
        LlamaLike(attention={"kept": lambda config: window(config.get("sliding_window", SOLAR_WINDOW))}),
    ),
    # LayerNorm, a quarter of each head turning; the 12B has norms of heads and parallel blocks.
    Family(
        ("StableLmForCausalLM",),
        LlamaLike(
            attention={
                "rope": lambda config: rope(config, partial=float(config.get("rope_pct", 0.25))),
                "qkv_bias": said("use_qkv_bias"),
                "output_bias": False,
                "head_norm": lambda config: "per_head" if config.get("qk_layernorm") else "none",
                "head_norm_kind": "layer_no_bias",
            },
            norm=("layer", "layer_norm_eps", 1e-5),
            places=lambda config: "parallel" if config.get("use_parallel_residual", False) else "before",
            max_positions=4096,
        ),
        TensorNames(query_norm="self_attn.q_layernorm.norms.{}", key_norm="self_attn.k_layernorm.norms.{}"),
    ),
)

"""Small random models of the dense families, saved as checkpoints: by transformers, or renamed from a twin."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from small_models import VOCAB_SIZE

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "vocab_size": VOCAB_SIZE,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_GPT = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "vocab_size": VOCAB_SIZE}
_ENDS = {"bos_token_id": 0, "eos_token_id": 0}
_BIASED = SIZES | {"attention_bias": True, "mlp_bias": True}
_HALF = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 64,
    "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0],
    "short_factor": [1.0, 1.0, 1.1, 1.1, 1.2, 1.2],
    "partial_rotary_factor": 0.75,
}


@dataclass(frozen=True, slots=True)
class Dense:
    """config: the name of transformers' class, and what it is made with.

    shortest: of the prompts that it answers. zero: parameters with one of these in their names are 0.
    """

    config: str
    values: dict[str, Any] = field(default_factory=dict)
    shortest: int = 1
    zero: tuple[str, ...] = ()


DENSE: dict[str, Dense] = {
    "apertus": Dense("ApertusConfig", SIZES | {"hidden_act": "xielu", "rope_parameters": None}),
    "arcee": Dense("ArceeConfig", _BIASED | {"rope_parameters": _YARN}),
    "bloom": Dense("BloomConfig", {"hidden_size": 64, "n_head": 4, "n_layer": 2, "vocab_size": VOCAB_SIZE} | _ENDS),
    "bloom-odd": Dense("BloomConfig", {"hidden_size": 96, "n_head": 6, "n_layer": 2, "vocab_size": VOCAB_SIZE} | _ENDS),
    "codegen": Dense("CodeGenConfig", _GPT | _ENDS | {"rotary_dim": 8, "tie_word_embeddings": False}),
    "cohere": Dense("CohereConfig", SIZES | {"tie_word_embeddings": True, "logit_scale": 0.3}),
    "cohere-normed": Dense("CohereConfig", SIZES | {"use_qk_norm": True, "attention_bias": True}),
    "ernie": Dense("Ernie4_5Config", SIZES | {"use_bias": True, "head_dim": 24}),
    "falcon-7b": Dense("FalconConfig", SIZES | {"multi_query": True, "parallel_attn": True, "bias": False}),
    "falcon-40b": Dense("FalconConfig", SIZES | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-11b": Dense(
        "FalconConfig",
        SIZES | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon-rw": Dense(
        "FalconConfig", SIZES | {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True}
    ),
    "gemma": Dense("GemmaConfig", SIZES | {"head_dim": 32, "tie_word_embeddings": True}),
    "glm": Dense("GlmConfig", _BIASED | {"head_dim": 32}),
    "glm4": Dense("Glm4Config", SIZES | {"head_dim": 32, "rope_parameters": _HALF}),
    "gpt_bigcode": Dense("GPTBigCodeConfig", _GPT | _ENDS | {"multi_query": True}),
    "gpt_bigcode-heads": Dense("GPTBigCodeConfig", _GPT | _ENDS | {"multi_query": False}),
    "gpt_neox": Dense("GPTNeoXConfig", SIZES | {"num_key_value_heads": None}),
    "gpt_neox-serial": Dense("GPTNeoXConfig", SIZES | {"use_parallel_residual": False, "rotary_pct": 0.5}),
    "gptj": Dense("GPTJConfig", _GPT | _ENDS | {"rotary_dim": 8, "tie_word_embeddings": False}),
    "granite": Dense(
        "GraniteConfig",
        _BIASED
        | {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 2.0},
    ),
    "helium": Dense("HeliumConfig", _BIASED | {"head_dim": 16}),
    "hunyuan": Dense(
        "HunYuanDenseV1Config",
        SIZES
        | {
            "head_dim": 16,
            "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 1e4},
        },
    ),
    "hyperclovax": Dense(
        "HyperCLOVAXConfig",
        SIZES | {"residual_multiplier": 0.7, "embedding_multiplier": 2.0, "logits_scaling": 0.5, "use_post_norm": True},
    ),
    "internlm3": Dense("InternLM3Config", SIZES | {"qkv_bias": True, "bias": True, "head_dim": 16}),
    "ministral": Dense("MinistralConfig", SIZES | {"sliding_window": 24, "head_dim": 16}),
    "ministral3": Dense(
        "Ministral3Config",
        SIZES
        | {"sliding_window": None, "head_dim": 24}
        | {
            "rope_parameters": _YARN
            | {"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.3, "mscale": 1.0}
            | {"mscale_all_dim": 0.5, "beta_fast": 4.0, "beta_slow": 1.0}
        },
    ),
    "mpt": Dense(
        "MptConfig", {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 256, "vocab_size": VOCAB_SIZE} | _ENDS
    ),
    "nemotron": Dense("NemotronConfig", _BIASED | {"head_dim": 16}),
    "olmo": Dense("OlmoConfig", SIZES | {"clip_qkv": 0.8}),
    "olmo2": Dense("Olmo2Config", SIZES),
    "opt": Dense("OPTConfig", SIZES | {"ffn_dim": 96, "word_embed_proj_dim": 64, "tie_word_embeddings": True}),
    "phi": Dense("PhiConfig", SIZES | {"qk_layernorm": True}),
    "phi3": Dense("Phi3Config", SIZES | {"sliding_window": 24}),
    "phi3-long": Dense(
        "Phi3Config", SIZES | {"original_max_position_embeddings": 64, "rope_parameters": _LONG}, shortest=60
    ),
    "seed_oss": Dense("SeedOssConfig", _BIASED | {"head_dim": 24, "attention_out_bias": True}),
    "smollm3": Dense("SmolLM3Config", SIZES | {"num_hidden_layers": 4, "tie_word_embeddings": True}),
    "stablelm": Dense("StableLmConfig", SIZES | {"use_qkv_bias": True}),
    "stablelm-12b": Dense("StableLmConfig", SIZES | {"use_parallel_residual": True, "qk_layernorm": True}),
    "starcoder2": Dense("Starcoder2Config", SIZES | {"sliding_window": 24}),
}

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Renamed:
    """A family without a class in transformers, which computes as one that has: ``twin``, under other names.

    config: the keys that the family has otherwise. rename: a tensor's name and what it then holds, from the twin's.
    """

    twin: Dense
    config: dict[str, Any]
    rename: Callable[[Tensors], Tensors]


def _replaced(*pairs: tuple[str, str]) -> Callable[[Tensors], Tensors]:
    def rename(tensors: Tensors) -> Tensors:
        renamed = {}
        for name, tensor in tensors.items():
            for old, new in pairs:
                name = name.replace(old, new)
            renamed[name] = tensor
        return renamed

    return rename


def _fused(*, grouped: bool, name: str) -> Callable[[Tensors], Tensors]:
    """q_proj, k_proj and v_proj as one tensor called ``name``, by KV head where ``grouped``."""

    def fuse(tensors: Tensors) -> Tensors:
        fused = dict(tensors)
        for query in [each for each in tensors if "q_proj" in each]:
            parts = [fused.pop(query.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
            groups = 2 if grouped else 1
            pieces = [part.unflatten(0, (groups, -1)) for part in parts]
            fused[query.replace("self_attn.q_proj", name)] = torch.cat(pieces, dim=1).flatten(0, 1)
        return fused

    return fuse


def _gates_of_half(tensors: Tensors) -> Tensors:
    """Shared experts without their gates, which are 0: a sigmoid of 0 halves their outputs."""
    kept = {name: tensor for name, tensor in tensors.items() if "shared_expert_gate" not in name}
    return {name: tensor * (0.5 if "shared_expert.down" in name else 1.0) for name, tensor in kept.items()}


def _without(*prefixes: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if not name.startswith(prefixes)}


def _both(*steps: Callable[[Tensors], Tensors]) -> Callable[[Tensors], Tensors]:
    def rename(tensors: Tensors) -> Tensors:
        for step in steps:
            tensors = step(tensors)
        return tensors

    return rename


_GPT_NAMES = (
    ("model.embed_tokens", "transformer.wte"),
    ("model.layers", "transformer.h"),
    ("model.norm", "transformer.ln_f"),
    ("input_layernorm", "ln_1"),
    ("post_attention_layernorm", "ln_2"),
)
_GLM_NAMES = (
    ("model.embed_tokens", "transformer.embedding.word_embeddings"),
    ("model.layers", "transformer.encoder.layers"),
    ("model.norm", "transformer.encoder.final_layernorm"),
    ("self_attn.o_proj", "self_attention.dense"),
    ("mlp.gate_up_proj", "mlp.dense_h_to_4h"),
    ("mlp.down_proj", "mlp.dense_4h_to_h"),
    ("lm_head", "transformer.output_layer"),
)
_BAILING_NAMES = (
    ("model.embed_tokens", "model.word_embeddings"),
    ("self_attn.o_proj", "attention.dense"),
    ("self_attn.q_norm", "attention.query_layernorm"),
    ("self_attn.k_norm", "attention.key_layernorm"),
    ("mlp.gate.e_score_correction_bias", "mlp.gate.expert_bias"),
    ("mlp.shared_expert.", "mlp.shared_experts."),
)
_EXPERTS = SIZES | {"num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": True}
_PLAIN_MIXTURE = Dense(
    "Qwen2MoeConfig",
    _EXPERTS | {"num_experts": 8, "shared_expert_intermediate_size": 48, "mlp_only_layers": [0], "qkv_bias": False},
    zero=("shared_expert_gate",),
)
_GROUPED_MIXTURE = Dense(
    "Glm4MoeConfig",
    _EXPERTS
    | {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "use_qk_norm": True, "first_k_dense_replace": 1}
    | {"n_shared_experts": 1, "routed_scaling_factor": 1.5, "head_dim": 16, "rope_parameters": _HALF},
)
_LLAMA, _QWEN2 = Dense("LlamaConfig", SIZES), Dense("Qwen2Config", SIZES)
_NAS_BLOCKS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"n_heads_in_group": 2}, {"ffn_mult": 4.0}),
    ({"no_op": True}, {"ffn_mult": 4.0}),
    ({"n_heads_in_group": 2}, {"no_op": True}),
]
_PHI_PRODUCTS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
_ONE_HEAD_EACH = SIZES | {"num_key_value_heads": 4}

RENAMED: dict[str, Renamed] = {
    "aquila": Renamed(_LLAMA, SIZES | {"architectures": ["AquilaForCausalLM"]}, _replaced()),
    "iquest coder": Renamed(_LLAMA, SIZES | {"architectures": ["IQuestCoderForCausalLM"]}, _replaced()),
    "telechat 3": Renamed(_LLAMA, SIZES | {"architectures": ["TeleChat3ForCausalLM"]}, _replaced()),
    "baichuan": Renamed(
        Dense("LlamaConfig", _ONE_HEAD_EACH),
        _ONE_HEAD_EACH | {"architectures": ["BaichuanForCausalLM"], "num_key_value_heads": None},
        _fused(grouped=False, name="self_attn.W_pack"),
    ),
    "bailing": Renamed(
        _PLAIN_MIXTURE,
        _EXPERTS
        | {"architectures": ["BailingMoeForCausalLM"], "num_experts": 8, "num_shared_experts": 2}
        | {"first_k_dense_replace": 1},
        _both(_gates_of_half, _fused(grouped=False, name="attention.query_key_value"), _replaced(*_BAILING_NAMES)),
    ),
    "bailing2": Renamed(
        _GROUPED_MIXTURE,
        _EXPERTS
        | {"architectures": ["BailingMoeV2ForCausalLM"], "num_experts": 8, "num_shared_experts": 1, "head_dim": 16}
        | {"score_function": "sigmoid", "moe_router_enable_expert_bias": True, "n_group": 4, "topk_group": 2}
        | {"routed_scaling_factor": 1.5, "use_qk_norm": True, "partial_rotary_factor": 0.5, "rope_theta": 1e4}
        | {"first_k_dense_replace": 1, "rms_norm_eps": 1e-5},
        _both(_fused(grouped=False, name="attention.query_key_value"), _replaced(*_BAILING_NAMES)),
    ),
    "chatglm": Renamed(
        Dense("GlmConfig", SIZES | {"head_dim": 32, "attention_bias": True, "rms_norm_eps": 1e-5}),
        {"architectures": ["ChatGLMModel"], "hidden_size": 64, "ffn_hidden_size": 80, "num_layers": 2}
        | {"num_attention_heads": 4, "kv_channels": 32, "multi_query_attention": True, "multi_query_group_num": 2}
        | {"seq_length": 256, "padded_vocab_size": VOCAB_SIZE, "layernorm_epsilon": 1e-5, "add_qkv_bias": True},
        _both(_fused(grouped=False, name="self_attention.query_key_value"), _replaced(*_GLM_NAMES)),
    ),
    "decilm": Renamed(
        Dense(
            "LlamaConfig",
            SIZES | {"num_hidden_layers": 3, "intermediate_size": 256},
            zero=("layers.1.self_attn.o_proj", "layers.2.mlp.down_proj"),
        ),
        SIZES
        | {"architectures": ["DeciLMForCausalLM"], "num_hidden_layers": 3}
        | {"block_configs": [{"attention": each, "ffn": ffn} for each, ffn in _NAS_BLOCKS]},
        _without(
            *("model.layers.1.self_attn.", "model.layers.1.input_layernorm."),
            *("model.layers.2.mlp.", "model.layers.2.post_attention_layernorm."),
        ),
    ),
    "deepseek": Renamed(
        _PLAIN_MIXTURE,
        _EXPERTS
        | {"architectures": ["DeepseekForCausalLM"], "n_routed_experts": 8, "n_shared_experts": 2}
        | {"first_k_dense_replace": 1},
        _both(_gates_of_half, _replaced(("mlp.shared_expert.", "mlp.shared_experts."))),
    ),
    "exaone": Renamed(
        _LLAMA,
        SIZES | {"architectures": ["ExaoneForCausalLM"], "num_layers": 2, "layer_norm_epsilon": 1e-6},
        _replaced(
            *_GPT_NAMES,
            ("self_attn.o_proj", "attn.attention.out_proj"),
            ("self_attn", "attn.attention"),
            ("mlp.gate_proj", "mlp.c_fc_0"),
            ("mlp.up_proj", "mlp.c_fc_1"),
            ("mlp.down_proj", "mlp.c_proj"),
        ),
    ),
    "internlm2": Renamed(
        _LLAMA,
        SIZES | {"architectures": ["InternLM2ForCausalLM"]},
        _both(
            _fused(grouped=True, name="attention.wqkv"),
            _replaced(
                ("model.embed_tokens", "model.tok_embeddings"),
                ("self_attn.o_proj", "attention.wo"),
                ("mlp.gate_proj", "feed_forward.w1"),
                ("mlp.up_proj", "feed_forward.w3"),
                ("mlp.down_proj", "feed_forward.w2"),
                ("input_layernorm", "attention_norm"),
                ("post_attention_layernorm", "ffn_norm"),
                ("lm_head", "output"),
            ),
        ),
    ),
    "mimo": Renamed(_QWEN2, SIZES | {"architectures": ["MiMoForCausalLM"]}, _replaced()),
    "minicpm": Renamed(
        Dense(
            "GraniteConfig",
            SIZES
            | {"attention_multiplier": 0.25, "embedding_multiplier": 12.0, "residual_multiplier": 1.4 / 2**0.5}
            | {"logits_scaling": 4.0},
        ),
        SIZES | {"architectures": ["MiniCPMForCausalLM"], "scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 16},
        _replaced(),
    ),
    "orion": Renamed(
        Dense("StableLmConfig", SIZES | {"partial_rotary_factor": 1.0}),
        SIZES | {"architectures": ["OrionForCausalLM"]},
        _replaced(),
    ),
    "phi4mm": Renamed(
        Dense("Phi3Config", SIZES | {"sliding_window": None}),
        SIZES | {"architectures": ["Phi4MMForCausalLM"], "rms_norm_eps": 1e-5},
        _replaced(*((f"{part}.weight", f"{part}.base_layer.weight") for part in _PHI_PRODUCTS)),
    ),
    "qwen": Renamed(
        Dense("Qwen2Config", _ONE_HEAD_EACH),
        _ONE_HEAD_EACH
        | {"architectures": ["QWenLMHeadModel"], "intermediate_size": 160, "seq_length": 256, "kv_channels": 16}
        | {"layer_norm_epsilon": 1e-6, "num_key_value_heads": None},
        _both(
            _fused(grouped=False, name="attn.c_attn"),
            _replaced(
                *_GPT_NAMES,
                ("self_attn.o_proj", "attn.c_proj"),
                ("mlp.up_proj", "mlp.w1"),
                ("mlp.gate_proj", "mlp.w2"),
                ("mlp.down_proj", "mlp.c_proj"),
            ),
        ),
    ),
}


def randomise(model: torch.nn.Module, zero: tuple[str, ...] = ()) -> None:
    """Weights that decide the next token by more than rounding; norms begin at 1 and biases at 0, which would hide.

    zero: parameters with one of these in their names become 0.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.15 if parameter.ndim > 1 else 0.3
            center = parameter if parameter.ndim == 1 else torch.zeros(())
            parameter.copy_(center + spread * torch.randn_like(parameter))
        for name, parameter in model.named_parameters():
            if any(part in name for part in zero):
                parameter.zero_()
        for name, buffer in model.named_buffers():
            if "correction" in name:
                buffer.copy_(0.3 * torch.randn_like(buffer))
            elif "layer_scalar" in name:
                buffer.uniform_(0.5, 1.5)


class DenseCheckpoint:
    """A saved random model: ``path`` for the engine, ``model`` for transformers."""

    def __init__(self, name: str, folder: Path, others: Mapping[str, Dense] | None = None) -> None:
        torch.manual_seed([*DENSE, *RENAMED, *(others or {})].index(name))
        renamed = RENAMED.get(name)
        dense = {**DENSE, **(others or {})}[name] if renamed is None else renamed.twin
        config = getattr(transformers, dense.config)(**dense.values)
        self.shortest = dense.shortest
        auto = transformers.AutoModelForCausalLM
        if type(config) in auto._model_mapping:
            self.model = auto.from_config(config, dtype=torch.float32).eval()
        else:
            self.model = getattr(transformers, dense.config.replace("Config", "ForCausalLM"))(config).eval()
        randomise(self.model, dense.zero)
        self.path = folder / name
        self.model.save_pretrained(self.path)
        if renamed is not None:
            tensors = renamed.rename(load_file(self.path / "model.safetensors"))
            save_file(tensors, self.path / "model.safetensors")
            (self.path / "config.json").write_text(json.dumps(renamed.config), encoding="utf-8")

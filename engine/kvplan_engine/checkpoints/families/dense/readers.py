"""Llama, how a family that is read alike says what differs, and readers of what such a row cannot say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvplan_engine.checkpoints import fields
from kvplan_engine.checkpoints.fields import activation, attention, decoder, mlp, rope, window, with_heads_of
from kvplan_engine.description.mixers import FULL, Attention, Kept, Rope
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import NormKind, Norms
from kvplan_engine.errors import EngineError

Config = Mapping[str, Any]
Values = Mapping[str, Any]
"""Fields of a part, by name; a function of the config stands for what it returns."""


def said(key: str, default: bool = False) -> Callable[[Config], bool]:
    """Return what reads a flag of the config."""
    return lambda config: bool(config.get(key, default))


def factor(key: str, default: float = 1.0) -> Callable[[Config], float]:
    """Return what reads a number of the config."""
    return lambda config: float(config.get(key, default))


def values_of(named: Values, config: Config) -> dict[str, Any]:
    """Return the fields as they are for a config."""
    return {name: value(config) if callable(value) else value for name, value in named.items()}


@dataclass(frozen=True, slots=True)
class LlamaLike:
    """A reader of configs with Llama's keys and equal layers, by what differs from Llama.

    defaults: of keys that the config leaves out; filled: also of those that are null. rope: options of ``fields.rope``;
    attention, mlp, model: fields of the parts and of the ModelDescription. norm: their kind, the key of its epsilon and
    the default; places: where they stand. residual_scale: of each block's output. max_positions: where the config says
    nothing, the default of the family's class in transformers.
    """

    defaults: Config = field(default_factory=dict)
    filled: Config = field(default_factory=dict)
    rope: Values = field(default_factory=dict)
    attention: Values = field(default_factory=dict)
    mlp: Values = field(default_factory=dict)
    norm: tuple[NormKind, str, float] = ("rms", "rms_norm_eps", 1e-6)
    places: Any = "before"
    residual_scale: float | Callable[[Config], float] = 1.0
    max_positions: int | None = 2048
    model: Values = field(default_factory=dict)

    def __call__(self, config: Config) -> ModelDescription:
        keys = {**self.defaults, **config}
        keys |= {key: value for key, value in self.filled.items() if not keys.get(key)}
        layer = self.layer(keys)
        others = values_of(self.model, keys)
        layers = [layer] * int(keys["num_hidden_layers"])
        return decoder(keys, layers, layer.norms, max_positions=self.max_positions, **others)

    def layer(self, keys: Config) -> Layer:
        """Return one layer; ``keys`` are the config's with the family's defaults."""
        kind, key, eps = self.norm
        shared = values_of({"places": self.places, "residual_scale": self.residual_scale}, keys)
        norms = Norms(kind, float(keys.get(key, eps)), shared["places"])
        own = values_of({"rope": lambda config: fields.rope(config, **self.rope), **self.attention}, keys)
        inner = mlp(keys, **({"bias": bool(keys.get("mlp_bias", False))} | values_of(self.mlp, keys)))
        return Layer((llama_attention(keys, **own),), inner, norms, residual_scale=shared["residual_scale"])


def llama(config: Config, *, max_positions: int = 2048, **attention_fields: Any) -> ModelDescription:
    """Return a model of equal layers, from Llama's keys. attention_fields: what its attention has otherwise."""
    return LlamaLike(max_positions=max_positions, attention=attention_fields)(config)


def llama_layer(config: Config, **attention_fields: Any) -> Layer:
    """Return one layer of Llama's keys."""
    return LlamaLike(attention=attention_fields).layer(config)


def llama_attention(config: Config, **others: Any) -> Attention:
    """Return attention of Llama's keys, with biases where ``attention_bias`` says so."""
    bias = bool(config.get("attention_bias", False))
    if "rope" not in others:
        others["rope"] = fields.rope(config)
    return attention(config, **({"qkv_bias": bias, "output_bias": bias} | others))


MISTRAL_WINDOW, SOLAR_WINDOW = 4096, 2047
"""Windows of configs that do not mention one: the defaults of MistralConfig and SolarConfig."""
_LARGEST_WITH_ROPE = 4096
"""Hidden size of Baichuan 7B; the config does not say which positions a model has."""
_UNKNOWN_OF_PANGU = ("param_sink_number", "interleaved_sliding_window", "qk_nope_head_dim", "n_routed_experts")


def read_window(config: Config) -> Kept:
    return window(config.get("sliding_window"))


def read_baichuan(config: Config) -> ModelDescription:
    """The 13B has slopes instead of positions (ALiBi)."""
    alibi = int(config["hidden_size"]) > _LARGEST_WITH_ROPE
    positions = int(config.get("model_max_length") or config.get("max_position_embeddings") or 4096)
    keys = {**config, "max_position_embeddings": positions}
    return llama(keys, rope=None if alibi else rope(keys), alibi=alibi)


def read_chatglm(config: Config) -> ModelDescription:
    """Two KV heads, half of each head turning by neighbours, and keys of its own."""
    heads = int(config["num_attention_heads"])
    own: dict[str, Any] = {
        "num_hidden_layers": config["num_layers"],
        "intermediate_size": config["ffn_hidden_size"],
        "head_dim": config.get("kv_channels") or int(config["hidden_size"]) // heads,
        "num_key_value_heads": config.get("multi_query_group_num", 2) if config.get("multi_query_attention") else heads,
        "max_position_embeddings": config["seq_length"],
        "vocab_size": config.get("padded_vocab_size") or config["vocab_size"],
        "rms_norm_eps": config.get("layernorm_epsilon", 1e-5),
    }
    keys = {**config, **own}
    positions = rope(keys, theta=10000.0 * float(config.get("rope_ratio", 1.0)), partial=0.5, neighbours=True)
    bias = bool(config.get("add_bias_linear", False))
    qkv_bias = bias or bool(config.get("add_qkv_bias", False))
    return llama(keys | {"mlp_bias": bias}, rope=positions, qkv_bias=qkv_bias, output_bias=bias)


def read_exaone(config: Config) -> ModelDescription:
    """Llama with keys and names of its own."""
    keys = {"num_hidden_layers": config.get("num_layers"), "rms_norm_eps": config.get("layer_norm_epsilon", 1e-5)}
    keys["hidden_act"] = config.get("activation_function", "silu")
    return llama({**keys, **config})


def gemma_activation(config: Config) -> str:
    """The published configs say gelu and mean tanh."""
    named = config.get("hidden_activation") or config.get("hidden_act", "gelu_pytorch_tanh")
    return activation("gelu_pytorch_tanh" if named == "gelu" else named)


def stretched_rope(config: Config) -> Rope:
    """RoPE whose base is multiplied with alpha ** (size / (size - 2)), where the scaling has an ``alpha``."""
    plain = rope(config)
    alpha = plain.scaling.get("alpha")
    if plain.scaling["rope_type"] != "dynamic" or not alpha:
        return plain
    size = plain.rotary_size
    return replace(plain, theta=plain.theta * float(alpha) ** (size / (size - 2)), scaling={"rope_type": "default"})


def read_ministral(config: Config) -> ModelDescription:
    """Where ``layer_types`` mixes windows and full attention, layer by layer."""
    tokens = config.get("sliding_window", MISTRAL_WINDOW)
    types = config.get("layer_types") or ["sliding_attention"] * int(config["num_hidden_layers"])
    kinds = {kind: llama_layer(config, kept=window(tokens) if kind == "sliding_attention" else FULL) for kind in types}
    return decoder(config, [kinds[kind] for kind in types], kinds[types[0]].norms, max_positions=32768)


def read_ministral3(config: Config) -> ModelDescription:
    """Queries far behind the original context are multiplied with a factor that grows with their position."""
    keys = {"rms_norm_eps": 1e-5} | with_heads_of(128, config)
    positions = rope(keys, theta=1000000.0)
    beta, tokens = (positions.scaling.get(key) for key in ("llama_4_scaling_beta", "original_max_position_embeddings"))
    growing = (float(beta), int(tokens)) if beta and tokens else None
    return llama(keys, rope=positions, kept=read_window(config), growing_scale=growing, max_positions=262144)


def read_pangu(config: Config) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/openpangu.py): its code comes with the checkpoint."""
    for key in _UNKNOWN_OF_PANGU:
        if config.get(key):
            raise EngineError(f"the engine does not know what layers of openPangu keep with {key}.")
    bias = bool(config.get("attention_bias") or config.get("bias"))
    attention = {"qkv_bias": bool(config.get("qkv_bias", bias)), "output_bias": bias, "kept": read_window}
    places = "both" if config.get("sandwich_norm") else "before"
    return LlamaLike(attention=attention, places=places, max_positions=None)(config)


def phi3_gguf(own: dict[str, Any]) -> dict[str, Any]:
    """A part of each head turns in Phi-4-mini."""
    size = int(own["embedding_length"]) // int(own["attention.head_count"])
    return {
        "sliding_window": own.get("attention.sliding_window"),
        "partial_rotary_factor": int(own.get("rope.dimension_count", size)) / size,
    }


def read_qwen(config: Config) -> ModelDescription:
    """The first Qwen: its size of the MLP counts gate and up."""
    own: dict[str, Any] = {"intermediate_size": int(config["intermediate_size"]) // 2}
    own["max_position_embeddings"] = config.get("max_position_embeddings") or config["seq_length"]
    own["rms_norm_eps"] = config.get("layer_norm_epsilon", 1e-6)
    if config.get("kv_channels"):
        own["head_dim"] = config["kv_channels"]
    keys = {**config, **own}
    positions = rope(keys, theta=float(config.get("rotary_emb_base", 10000)), partial=config.get("rotary_pct", 1.0))
    return llama(keys, rope=positions, qkv_bias=True)


def qwen(config: Config, **attention_fields: Any) -> ModelDescription:
    """Return Llama's keys with a window that is off unless ``use_sliding_window``, then in the later layers alone."""
    number, kept = int(config["num_hidden_layers"]), [FULL] * int(config["num_hidden_layers"])
    if config.get("use_sliding_window", False):
        num_full = min(number, int(config.get("max_window_layers") or 0))
        kept = kept[:num_full] + [read_window(config)] * (number - num_full)
    layers = [llama_layer(config, kept=each, **attention_fields) for each in kept]
    return decoder(config, layers, layers[0].norms, max_positions=32768)


def read_qwen2(config: Config) -> ModelDescription:
    return qwen(config, qkv_bias=True, output_bias=False)


def read_qwen3(config: Config) -> ModelDescription:
    return qwen(with_heads_of(128, config), head_norm="head")


def read_smollm3(config: Config) -> ModelDescription:
    """Every fourth layer has no positions."""
    number = int(config["num_hidden_layers"])
    interval = int(config.get("no_rope_layer_interval", 4))
    turns = config.get("no_rope_layers") or [int((index + 1) % interval != 0) for index in range(number)]
    kept = read_window(config) if config.get("use_sliding_window") else FULL
    types = config.get("layer_types") or ["full_attention" if turn else "sliding_attention" for turn in turns]
    kinds = {
        (bool(turn), kind): llama_layer(
            config,
            rope=rope(config, theta=2000000.0) if turn else None,
            kept=kept if kind == "sliding_attention" else FULL,
        )
        for turn, kind in zip(turns, types, strict=True)
    }
    layers = [kinds[bool(turn), kind] for turn, kind in zip(turns, types, strict=True)]
    return decoder(config, layers, layers[0].norms, max_positions=32768, tied=True)

"""A model's config.json as the engine needs it: shapes of the architectures it runs natively. No torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan_engine.errors import EngineError
from kvplan_engine.paths import model_profile_folders

_LLAMA_FAMILY = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_AS_PUBLISHED = "use the config.json as published"
SUPPORTED_ARCHITECTURES = ("GPT2LMHeadModel", *_LLAMA_FAMILY)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of one decoder, the same at every layer.

    family: ``gpt2``, ``llama``, ``mistral``, ``qwen2`` or ``qwen3``. head_size: of queries, keys and values.
    window_tokens: sliding window of every layer, None for full attention. rope: the config's RoPE parameters
    (``rope_theta``, ``rope_type`` and its numbers), None for learned positions.
    """

    family: str
    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    ffn_size: int
    gated_mlp: bool
    activation: str
    vocab_size: int
    max_position_embeddings: int
    norm_eps: float
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    dtype: str
    window_tokens: int | None
    rope: dict[str, Any] | None
    eos_token_ids: tuple[int, ...]

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_size

    @property
    def qkv_size(self) -> int:
        return self.query_size + 2 * self.kv_size

    @property
    def is_rotary(self) -> bool:
        return self.rope is not None


def load_model_config(source: str | Path | dict[str, Any]) -> ModelConfig:
    """Read a config dict, a config.json, a directory that holds one, or a short name of a shipped profile.

    EngineError when there is none, when it is malformed, or when the architecture is not one the engine runs.
    """
    config = source if isinstance(source, dict) else read_config_json(source)
    architecture = (config.get("architectures") or ["?"])[0]
    try:
        if architecture == "GPT2LMHeadModel":
            return _gpt2(config)
        if architecture in _LLAMA_FAMILY:
            return _llama(config, architecture)
    except KeyError as missing:
        raise EngineError(
            f"the config of this {architecture} lacks {missing}.", hint="use the config.json as published"
        ) from None
    except (TypeError, ValueError, ZeroDivisionError) as problem:
        raise EngineError(
            f"the config of this {architecture} is malformed: {problem}.", hint="use the config.json as published"
        ) from None
    raise EngineError(
        f"the engine does not run {architecture} yet.",
        hint="it runs " + ", ".join(SUPPORTED_ARCHITECTURES) + "; `kvplan estimate` sizes many more",
    )


def read_config_json(source: str | Path) -> dict[str, Any]:
    """The raw config of a path or of a shipped profile's short name or Hugging Face id."""
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        profile = find_profile(str(source))
        if profile is not None:
            config: dict[str, Any] = profile["config"]
            return config
        raise EngineError(
            f"there is no model at '{source}' and no shipped profile of that name.",
            hint="give a directory with a config.json, a config.json, a .gguf file, or a name from `kvplan models`",
        )
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise EngineError(f"{path} is not a readable config.json: {problem}.") from None
    if not isinstance(loaded, dict):
        raise EngineError(f"{path} does not hold a JSON object.")
    return loaded


def find_profile(name: str) -> dict[str, Any] | None:
    """A shipped profile by short name, id or alias. The engine reads the data files, never the planner's code."""
    for folder in model_profile_folders():
        for file in sorted(folder.glob("*.json")):
            profile: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            names = {file.stem, profile.get("id", ""), *profile.get("aliases", [])}
            if name.lower() in {known.lower() for known in names}:
                return profile
    return None


def _gpt2(config: dict[str, Any]) -> ModelConfig:
    hidden = int(config["n_embd"])
    heads = int(config["n_head"])
    if hidden % heads:
        raise ValueError(f"n_embd {hidden} is not a multiple of n_head {heads}")
    return ModelConfig(
        family="gpt2",
        architecture="GPT2LMHeadModel",
        num_layers=int(config["n_layer"]),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_size=hidden // heads,
        ffn_size=int(config.get("n_inner") or 4 * hidden),
        gated_mlp=False,
        activation=_known_activation(config.get("activation_function", "gelu_new")),
        vocab_size=int(config["vocab_size"]),
        max_position_embeddings=int(config.get("n_positions") or config["n_ctx"]),
        norm_eps=float(config.get("layer_norm_epsilon", 1e-5)),
        tie_word_embeddings=config.get("tie_word_embeddings", True) is not False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        dtype=_dtype_name(config, "float32"),
        window_tokens=None,
        rope=None,
        eos_token_ids=_token_ids(config.get("eos_token_id")),
    )


def _llama(config: dict[str, Any], architecture: str) -> ModelConfig:
    family = _LLAMA_FAMILY[architecture]
    hidden = int(config["hidden_size"])
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} KV heads evenly")
    attention_bias = bool(config.get("attention_bias", False))
    return ModelConfig(
        family=family,
        architecture=architecture,
        num_layers=int(config["num_hidden_layers"]),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=int(config.get("head_dim") or hidden // heads),
        ffn_size=int(config["intermediate_size"]),
        gated_mlp=True,
        activation=_known_activation(config.get("hidden_act", "silu")),
        vocab_size=int(config["vocab_size"]),
        max_position_embeddings=int(config.get("max_position_embeddings") or 2048),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias or family == "qwen2",
        output_bias=attention_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        dtype=_dtype_name(config, "bfloat16"),
        window_tokens=_window(config, family),
        rope=_rope_parameters(config),
        eos_token_ids=_token_ids(config.get("eos_token_id")),
    )


def _window(config: dict[str, Any], family: str) -> int | None:
    window = config.get("sliding_window")
    if family in ("qwen2", "qwen3"):
        if not config.get("use_sliding_window", False):
            return None
        if config.get("max_window_layers", 0):
            raise EngineError("the engine does not run models that mix windowed and full attention layers yet.")
    return int(window) if family != "llama" and window else None


def _rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """Old keys (``rope_theta`` + ``rope_scaling``) and new ones (``rope_parameters``) as one dict."""
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    parameters.setdefault("rope_theta", float(config.get("rope_theta") or 10000.0))
    parameters["rope_type"] = parameters.get("rope_type") or parameters.get("type") or "default"
    if parameters["rope_type"] not in ("default", "linear", "llama3"):
        raise EngineError(
            f"the engine does not know the RoPE scaling '{parameters['rope_type']}'.",
            hint="it knows default, linear and llama3",
        )
    return parameters


def _known_activation(name: str) -> str:
    if name not in ("gelu_new", "gelu_pytorch_tanh", "gelu", "silu"):
        raise EngineError(f"the engine does not know the activation '{name}'.", hint="it knows gelu, gelu_new and silu")
    return name


def _dtype_name(config: dict[str, Any], default: str) -> str:
    return str(config.get("dtype") or config.get("torch_dtype") or default).removeprefix("torch.")


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)

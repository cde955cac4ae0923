"""Fields of a config.json that several families share, read and checked. A value the engine lacks is an EngineError."""

from __future__ import annotations

from typing import Any

from kvplan_engine.errors import EngineError

_GATED_ACTIVATIONS = {"silu": "silu_and_mul"}
_PLAIN_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new"}
_ROPE_TYPES = ("default", "linear", "llama3")
_DTYPES = ("bfloat16", "float16", "float32", "float64")


def gated_activation(name: str) -> str:
    """``ModelConfig.activation`` of an MLP with a gate, from the name that configs use."""
    return _known_activation(name, _GATED_ACTIVATIONS, "with a gate")


def plain_activation(name: str) -> str:
    """``ModelConfig.activation`` of an MLP without a gate."""
    return _known_activation(name, _PLAIN_ACTIVATIONS, "without a gate")


def _known_activation(name: str, known: dict[str, str], kind: str) -> str:
    if name not in known:
        raise EngineError(
            f"the engine does not know the activation '{name}' in an MLP {kind}.", hint="it knows " + ", ".join(known)
        )
    return known[name]


def rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """The old keys (``rope_theta`` and ``rope_scaling``) or the new one (``rope_parameters``) as one dict."""
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    parameters.setdefault("rope_theta", float(config.get("rope_theta") or 10000.0))
    parameters["rope_type"] = parameters.get("rope_type") or parameters.get("type") or "default"
    if parameters["rope_type"] not in _ROPE_TYPES:
        raise EngineError(
            f"the engine does not know the RoPE scaling '{parameters['rope_type']}'.",
            hint="it knows default, linear and llama3",
        )
    return parameters


def kv_heads(config: dict[str, Any], num_heads: int) -> int:
    """``num_key_value_heads``, as many as query heads where the config says nothing."""
    number = int(config.get("num_key_value_heads") or num_heads)
    if num_heads % number:
        raise ValueError(f"{num_heads} query heads cannot share {number} KV heads evenly")
    return number


def dtype_name(config: dict[str, Any]) -> str:
    """The dtype the weights were published in, without ``torch.``; float32 where the config is silent."""
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"its dtype '{name}' is none of {', '.join(_DTYPES)}")
    return name


def eos_token_ids(config: dict[str, Any]) -> tuple[int, ...]:
    """``eos_token_id``, which is a number, a list or absent."""
    value = config.get("eos_token_id")
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)

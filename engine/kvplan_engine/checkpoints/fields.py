"""Fields of a config.json that several families share, read and checked. A value the engine lacks is an EngineError."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvplan_engine.description.feed_forward import Activation, Mlp
from kvplan_engine.description.mixers import FULL, Attention, Kept, Rope
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms
from kvplan_engine.errors import EngineError

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
    "situ": "situ",
}
_MULTI_TOKEN_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
_DTYPES = ("bfloat16", "float16", "float32", "float64")


def decoder(
    config: Mapping[str, Any],
    layers: Sequence[Layer],
    norm: Norms,
    *,
    max_positions: int | None = 2048,
    tied: bool = False,
    **others: Any,
) -> ModelDescription:
    """A model of ``layers`` with the keys that nearly all configs share. norm: the last one, behind the layers.

    max_positions, tied: where the config says nothing, the defaults of the family's class in transformers. others:
    further fields of the ModelDescription.
    """
    positions = config.get("max_position_embeddings") or max_positions
    sizes = {"hidden_size": positive(others.pop("hidden_size", None) or config["hidden_size"], "hidden_size")}
    return ModelDescription(
        architecture=config["architectures"][0],
        layers=tuple(layers),
        vocab_size=positive(config["vocab_size"], "vocab_size"),
        max_position_embeddings=None if positions is None else int(positions),
        norm=norm,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", tied)),
        dtype=dtype_name(config),
        eos_token_ids=eos_token_ids(config),
        num_multi_token=max(int(config.get(key) or 0) for key in _MULTI_TOKEN_KEYS),
        **(sizes | others),
    )


def attention(config: Mapping[str, Any], *, rope: Rope | None, **others: Any) -> Attention:
    """Attention with the keys that nearly all configs share. others: further fields, or other values for these."""
    heads = positive(config["num_attention_heads"], "num_attention_heads")
    size = head_size(config)
    shared = {
        "num_heads": heads,
        "num_kv_heads": kv_heads(config, heads),
        "key_size": size,
        "value_size": size,
        "scale": size**-0.5,
    }
    return Attention(**(shared | others), rope=rope)


def mlp(config: Mapping[str, Any], **others: Any) -> Mlp:
    """A gated MLP of ``intermediate_size``, with SiLU where the config says nothing. others: as for ``attention``."""
    shared = {
        "size": positive(config["intermediate_size"], "intermediate_size"),
        "activation": activation(config.get("hidden_act") or "silu"),
    }
    return Mlp(**(shared | others))


def positive(value: Any, key: str) -> int:
    """A size as a whole number. ValueError where it is none, or below 1."""
    size = int(value)
    if size < 1:
        raise ValueError(f"its '{key}' is {size}")
    return size


def head_size(config: Mapping[str, Any]) -> int:
    """``head_dim``, else an equal share of the hidden size. ValueError where there is none."""
    if config.get("head_dim"):
        return positive(config["head_dim"], "head_dim")
    hidden, heads = (positive(config[key], key) for key in ("hidden_size", "num_attention_heads"))
    if hidden % heads:
        raise ValueError(f"a hidden size of {hidden} has no equal share for each of {heads} heads")
    return hidden // heads


def with_heads_of(size: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """``config``, where it says no ``head_dim`` with that of the family's class in transformers."""
    return {**config, "head_dim": config.get("head_dim") or size}


def window(tokens: Any) -> Kept:
    """A sliding window of ``tokens``; null and 0 are none."""
    return Kept("window", int(tokens)) if tokens else FULL


def activation(name: str) -> Activation:
    """``Mlp.activation`` from the name that configs use."""
    if name not in _ACTIVATIONS:
        raise EngineError(
            f"the engine does not know the activation '{name}'.", hint="it knows " + ", ".join(_ACTIVATIONS)
        )
    return _ACTIVATIONS[name]


def rope(
    config: Mapping[str, Any],
    size: int | None = None,
    *,
    theta: float = 10000.0,
    partial: float = 1.0,
    neighbours: bool = False,
) -> Rope:
    """The old keys (``rope_theta`` and ``rope_scaling``) or the new one (``rope_parameters``).

    size: of a head; None for ``head_size``. theta, partial: the base and the share of a head that turns, where the
    config does not say.
    """
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = float(parameters.pop("rope_theta", None) or config.get("rope_theta") or theta)
    if not 0 < base < math.inf:
        raise ValueError(f"its 'rope_theta' is {base}")
    share = parameters.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or partial
    parameters["rope_type"] = parameters.get("rope_type") or parameters.pop("type", None) or "default"
    parameters.pop("type", None)
    if parameters["rope_type"] == "mrope":  # a position in text is the same in all of its sections
        parameters["rope_type"] = "default"
    if parameters["rope_type"] in ("yarn", "longrope", "su"):
        _complete_scaling(parameters, config)
    whole = head_size(config) if size is None else size
    return Rope(base, int(whole * float(share)), neighbours, parameters)


def _complete_scaling(parameters: dict[str, Any], config: Mapping[str, Any]) -> None:
    """What a scaling needs and a config may say outside of it."""
    positions = int(config["max_position_embeddings"])
    own = parameters.get("original_max_position_embeddings")
    original = int(own or config.get("original_max_position_embeddings") or positions)
    parameters["original_max_position_embeddings"] = original
    if parameters.get("factor") is None:
        parameters["factor"] = positions / original


def kv_heads(config: Mapping[str, Any], num_heads: int) -> int:
    """``num_key_value_heads``, as many as query heads where the config says nothing."""
    number = positive(config.get("num_key_value_heads") or num_heads, "num_key_value_heads")
    if num_heads % number:
        raise ValueError(f"{num_heads} query heads cannot share {number} KV heads evenly")
    return number


def dtype_name(config: Mapping[str, Any]) -> str:
    """The dtype the weights were published in, without ``torch.``; float32 where the config is silent."""
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"its dtype '{name}' is none of {', '.join(_DTYPES)}")
    return name


def eos_token_ids(config: Mapping[str, Any]) -> tuple[int, ...]:
    """``eos_token_id``, which is a number, a list or absent."""
    value = config.get("eos_token_id")
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)

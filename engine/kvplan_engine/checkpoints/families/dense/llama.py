"""Llama: RoPE, RMSNorm, grouped KV heads, a gated MLP; and how a family that is read alike says what differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan_engine.checkpoints import fields
from kvplan_engine.checkpoints.fields import attention, decoder, mlp
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import NormKind, Norms

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

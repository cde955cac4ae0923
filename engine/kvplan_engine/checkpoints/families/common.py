"""What families with unlike layers share: the kinds of layers, windows, RoPE of each kind, mixtures' usual keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints import fields
from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.mixers import FULL, Attention, Kept, Rope
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import NormKind, NormPlaces, Norms

Config = Mapping[str, Any]


def model(config: Config, layers: Iterable[Layer], norm: Norms, **others: Any) -> ModelDescription:
    """A model of ``layers``, equal ones as one object. others: as for ``fields.decoder``."""
    known: dict[Layer, Layer] = {}
    return fields.decoder(config, [known.setdefault(layer, layer) for layer in layers], norm, **others)


def attention(config: Config, *, kept: Kept = FULL, layer_type: str = "", **others: Any) -> Attention:
    """Grouped KV heads with the RoPE of ``layer_type``. others: fields of ``Attention`` that differ."""
    size = int(others.pop("size", None) or fields.head_size(config))
    bias = bool(config.get("attention_bias", False))
    usual: dict[str, Any] = {
        "key_size": size,
        "value_size": size,
        "scale": size**-0.5,
        "kept": kept,
        "qkv_bias": bias,
        "output_bias": bias,
    }
    if "rope" not in others:
        usual["rope"] = rope(config, size, layer_type)
    return fields.attention(config, **(usual | others))


def rope(config: Config, size: int, layer_type: str = "", **options: Any) -> Rope:
    """RoPE of heads of ``size``, where a config may have parameters for each type of layers.

    options: ``rotary_size`` where it is not a share of the head, else as for ``fields.rope``.
    """
    parameters = config.get("rope_parameters") or {}
    own = parameters.get(layer_type)
    found = {**config, "rope_parameters": own} if isinstance(own, dict) else config
    rotary_size = options.pop("rotary_size", None)
    read = fields.rope(found, size, **options)
    return read if rotary_size is None else replace(read, rotary_size=int(rotary_size))


def mlp(config: Config, size: int | None = None, **others: Any) -> Mlp:
    """A gated MLP, of ``size`` where it is not ``intermediate_size``."""
    sizes: dict[str, Any] = {} if size is None else {"size": size}
    keys = config if size is None else {**config, "intermediate_size": size}
    return fields.mlp(keys, **({"bias": bool(config.get("mlp_bias", False))} | sizes | others))


def whole(config: Config, *keys: str, default: int | None = None) -> int:
    """The first of ``keys`` that the config has. KeyError where it has none and there is no ``default``."""
    for key in keys:
        if config.get(key) is not None:
            return int(config[key])
    if default is None:
        raise KeyError(keys[0])
    return default


def routed(config: Config, experts: str | tuple[str, ...], shared: int = 0, **others: Any) -> Mixture:
    """Experts of ``moe_intermediate_size``, as many as the first of the keys ``experts`` says; one of size ``shared``.

    None has biases; shared: 0 for none. others: fields of ``Mixture``, in place of these or beside them.
    """
    usual: dict[str, Any] = {
        "num_experts": whole(config, *((experts,) if isinstance(experts, str) else experts)),
        "top_k": whole(config, "num_experts_per_tok"),
        "shared": mlp(config, shared, bias=False) if shared else None,
    }
    if "expert" not in others:
        usual["expert"] = mlp(config, whole(config, "moe_intermediate_size"), bias=False)
    return Mixture(**(usual | others))


def with_layers(model: ModelDescription, change: Callable[[Layer], Layer]) -> ModelDescription:
    """``model`` with each of its layers changed, equal ones as one object still."""
    changed = {layer: change(layer) for layer in model.distinct_layers}
    return replace(model, layers=tuple(changed[layer] for layer in model.layers))


def norms(config: Config, kind: NormKind = "rms", places: NormPlaces = "before", *, key: str = "rms_norm_eps") -> Norms:
    """Norms of every block, with ``eps`` from ``key``."""
    return Norms(kind, float(config.get(key) or 1e-6), places)


def by_period(config: Config, period: int, others: str = "sliding_attention") -> list[str]:
    """``layer_types``, else ``others`` but for the last of every ``period`` layers, which is full (0: none is).

    ValueError where there are fewer types than layers.
    """
    number = int(config["num_hidden_layers"])
    said = config.get("layer_types")
    if said is not None:
        if len(said) < number:
            raise ValueError(f"it names the types of {len(said)} layers and has {number}")
        return list(said[:number])
    return ["full_attention" if period and not (index + 1) % period else others for index in range(number)]


def window(config: Config, layer_type: str, default: int | None = None) -> Kept:
    """What a layer of ``layer_type`` keeps: ``sliding_window`` tokens, or all of them."""
    return fields.window(config.get("sliding_window", default)) if layer_type == "sliding_attention" else FULL

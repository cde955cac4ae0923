"""What families with unlike layers share: the kinds of layers, windows, RoPE of each kind, mixtures' usual keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints import fields
from kvplan_engine.description.feed_forward import FeedForward, Mixture, Mlp
from kvplan_engine.description.mixers import FULL, Attention, Kept, Mixer, Rope
from kvplan_engine.description.model import Layer, ModelDescription, Shape, WeightFactor
from kvplan_engine.description.norms import NormKind, NormPlaces, Norms

Config = Mapping[str, Any]


def model(config: Config, layers: Iterable[Layer], norm: Norms, **others: Any) -> ModelDescription:
    """A model of ``layers``, equal ones as one object. others: as for ``fields.decoder``."""
    known: dict[Layer, Layer] = {}
    return fields.decoder(config, [known.setdefault(layer, layer) for layer in layers], norm, **others)


def decoder(
    config: Config,
    norm: Norms,
    mixers: Sequence[Mixer | tuple[Mixer, ...]] | Mixer,
    parts: Sequence[FeedForward | None] | FeedForward | None,
    sparse: Sequence[bool] | None = None,
    *,
    dense: Mlp | None = None,
    shapes: Sequence[Shape] | Sequence[tuple[Shape, ...]] = (),
    factors: tuple[WeightFactor, ...] = (),
    residual_scale: float = 1.0,
    **others: Any,
) -> ModelDescription:
    """A model of layers between norms of one kind. A list has what each layer has, all else is the same in all.

    mixers: several in one layer are a tuple. parts: its feed-forwards, in layers that are not ``sparse`` ``dense`` in
    their place, or an MLP by the usual keys. shapes: parameters of no part. others: as for ``model``.
    """
    listed = next((each for each in (mixers, parts, sparse, shapes) if isinstance(each, list)), None)
    number = int(config["num_hidden_layers"]) if listed is None else len(listed)
    if sparse is not None and not all(sparse):
        plain = mlp(config) if dense is None else dense
        parts = [part if each else plain for part, each in zip(_each(parts, number), sparse, strict=True)]
    rows = zip(_each(mixers, number), _each(parts, number), _each(shapes, number), strict=True)
    layers = [
        Layer(mixer if isinstance(mixer, tuple) else (mixer,), part, norm, residual_scale, own, factors=factors)
        for mixer, part, own in rows
    ]
    return model(config, layers, norm, **others)


def _each(given: Any, number: int) -> list[Any]:
    return given if isinstance(given, list) else [given] * number


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


def after_dense_ones(config: Config, first: int = 0) -> list[bool]:
    """Which layers have experts: all behind ``first_k_dense_replace``, or one in ``moe_layer_freq`` of those.

    first: where the config does not say. ``mlp_layer_types``, as transformers 5 writes it, or a list of
    ``moe_layer_freq`` says it layer by layer.
    """
    number = int(config["num_hidden_layers"])
    types, flags = config.get("mlp_layer_types"), config.get("moe_layer_freq")
    if types is not None:
        return [kind == "sparse" for kind in types[:number]]
    if isinstance(flags, list):
        return [bool(flag) for flag in flags]
    first, every = whole(config, "first_k_dense_replace", default=first), whole(config, "moe_layer_freq", default=1)
    return [index >= first and index % every == 0 for index in range(number)]


def stepped(config: Config) -> list[bool]:
    """Qwen's rule: every ``decoder_sparse_step``-th layer but those in ``mlp_only_layers``."""
    dense, step = set(config.get("mlp_only_layers") or ()), whole(config, "decoder_sparse_step", default=1)
    return [index not in dense and (index + 1) % step == 0 for index in range(int(config["num_hidden_layers"]))]


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

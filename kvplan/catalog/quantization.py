"""From ``quantization_config`` to a ``QuantizationSpec``: which weights are packed how, with which scales.

Facts about the formats are those of their loaders: AutoAWQ and AutoGPTQ (groups along the input, packed zero points),
DeepSeek's fp8 (one float32 scale per 128 x 128 tile), compressed-tensors and ModelOpt (config groups), OCP MXFP4
(one 8-bit exponent per 32 values), NVFP4 (one fp8 scale per 16 values and one float32 scale per matrix).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.spec import QuantizationSpec
from kvplan.errors import KvplanError

_MAX_NAMES = 100_000


def read_quantization(view: ConfigView) -> QuantizationSpec | None:
    """The format of the published weights, or None where they are plain. KvplanError for an unknown format."""
    inner = view.section("text_config")
    section = view.section("quantization_config") or view.section("compression_config")
    if section is None and inner is not None:
        section = inner.section("quantization_config")
    if section is None:
        return None
    method = _method(section)
    reader = _READERS.get(method)
    if reader is None:
        raise KvplanError(
            f"Unknown weight format '{method}'.",
            hint="--assume quantization_config=null sizes the weights as if they were not quantized",
        )
    found = reader(section)
    if _has_packed_experts(view, section) and found is not None:
        found = replace(_ALGORITHMS["MXFP4"], ignore=found.ignore)
    if found is not None and view.config.get("expert_dtype") == "fp4" and not found.others:
        found = replace(found, others=(replace(_ALGORITHMS["MXFP4"], targets=("re:.*experts\\.\\*.*",)),))
    return None if found is None else replace(found, kv_cache_dtype=_kv_cache_dtype(section), quant_method=method)


def _has_packed_experts(view: ConfigView, section: ConfigView) -> bool:
    """Whether only the routed experts are packed, whatever else the config targets: Kimi K3, as vLLM reads it too."""
    named = view.texts("architectures") or []
    return "KimiK3ForConditionalGeneration" in named and section.config.get("format") == "mxfp4-pack-quantized"


def _method(section: ConfigView) -> str:
    named = section.text("quant_method", default="")
    if section.has("moe_quant_algo"):
        return "modelopt"
    if not named and (section.has("quant_algo") or section.has("quantization")):
        return "modelopt"
    if not named and section.has("config_groups"):
        return "compressed-tensors"
    if not named and (section.has("load_in_4bit") or section.has("load_in_8bit")):
        return "bitsandbytes"
    return named.casefold()


def _names(section: ConfigView, *keys: str) -> tuple[str, ...]:
    """Module names under the first of ``keys`` that is present. Longer than other lists of a config: one per module."""
    for key in keys:
        value = section.config.get(key)
        if value is None:
            continue
        if not isinstance(value, list) or len(value) > _MAX_NAMES or not all(isinstance(name, str) for name in value):
            raise section.reject(key, "a list of module names")
        return tuple(value)
    return ()


def _kv_cache_dtype(section: ConfigView) -> str | None:
    """The KV dtype the checkpoint has scales for: fp8 or None."""
    if section.has("kv_cache_quant_algo"):
        return "fp8" if section.text("kv_cache_quant_algo").upper().startswith("FP8") else None
    scheme = section.config.get("kv_cache_scheme")
    if isinstance(scheme, str):
        return "fp8" if scheme.upper().startswith("FP8") else None
    if isinstance(scheme, Mapping):
        if scheme.get("dynamic") is True:  # nothing was calibrated
            return None
        bits, kind = scheme.get("num_bits"), scheme.get("type")
        return {"float": "fp8", "int": "int8"}.get(str(kind)) if bits == 8 else None
    return None


def _bits(section: ConfigView, *keys: str) -> int:
    return section.integer(*keys, default=4, minimum=1, maximum=16)


def _grouped(section: ConfigView, *keys: str) -> dict[str, Any]:
    """``group_size`` as written by AWQ and GPTQ: -1 and 0 mean one scale per output channel."""
    size = section.integer(*keys, default=128, minimum=-1, maximum=2**20)
    if size <= 0:
        return {"granularity": "channel", "group_size": None}
    return {"granularity": "group", "group_size": size}


def _awq(section: ConfigView) -> QuantizationSpec:
    return QuantizationSpec(
        method="awq",
        bits=_bits(section, "bits", "w_bit"),
        **_grouped(section, "group_size", "q_group_size"),
        has_zero_points=section.flag("zero_point", default=True),
        ignore=_names(section, "modules_to_not_convert"),
    )


def _gptq(section: ConfigView) -> QuantizationSpec:
    """GPTQ stores zero points even when it is symmetric; ``desc_act`` adds the group of every input row."""
    dynamic = section.section("dynamic")
    skipped = tuple(f"re:{name[2:]}" for name in (dynamic.config if dynamic else {}) if str(name).startswith("-:"))
    return QuantizationSpec(
        method="gptq",
        bits=_bits(section, "bits"),
        **_grouped(section, "group_size"),
        has_zero_points=True,
        has_act_order=True,
        ignore=(*_names(section, "modules_to_not_convert"), *skipped),
    )


def _auto_round(section: ConfigView) -> QuantizationSpec:
    return replace(_gptq(section), method="gptq", has_act_order=False)


def _fp8(section: ConfigView) -> QuantizationSpec:
    shape = section.integers("weight_block_size", minimum=1)
    ignore = _names(section, "modules_to_not_convert", "ignored_layers")
    static = section.text("activation_scheme", default="dynamic") == "static"
    if shape is None:
        return QuantizationSpec("fp8", 8, "tensor", scale_dtype="float32", static_input_scale=static, ignore=ignore)
    if len(shape) != 2:
        raise section.reject("weight_block_size", "two whole numbers")
    return QuantizationSpec("fp8", 8, "block", block_shape=(shape[0], shape[1]), scale_dtype="float32", ignore=ignore)


def _fbgemm_fp8(section: ConfigView) -> QuantizationSpec:
    ignore = _names(section, "modules_to_not_convert")
    return QuantizationSpec("fbgemm_fp8", 8, "channel", scale_dtype="float32", ignore=ignore)


def _mxfp4(section: ConfigView) -> QuantizationSpec:
    ignore = _names(section, "modules_to_not_convert")
    return QuantizationSpec("mxfp4", 4, "group", group_size=32, scale_dtype="fp8", ignore=ignore)


def _bitsandbytes(section: ConfigView) -> QuantizationSpec | None:
    ignore = _names(section, "llm_int8_skip_modules")
    if section.flag("load_in_8bit", "_load_in_8bit", default=False):
        return QuantizationSpec("bitsandbytes", 8, "channel", scale_dtype="float32", ignore=ignore)
    if section.flag("load_in_4bit", "_load_in_4bit", default=False):
        return QuantizationSpec("bitsandbytes", 4, "group", group_size=64, scale_dtype="float32", ignore=ignore)
    return None


def _compressed_tensors(section: ConfigView) -> QuantizationSpec | None:
    groups = section.section("config_groups")
    if groups is None:
        return None
    found = []
    for name in groups.config:
        group = groups.section(name)
        weights = group.section("weights") if group is not None else None
        if group is not None and weights is not None:
            found.append(_weight_group(weights, targets=_names(group, "targets")))
    if not found:
        return None
    ignore = _names(section, "ignore")
    first, *rest = (replace(each, ignore=ignore) for each in found)
    return replace(first, others=tuple(rest))


def _weight_group(weights: ConfigView, *, targets: tuple[str, ...]) -> QuantizationSpec:
    """One entry of ``config_groups``: what its ``weights`` say."""
    bits = _bits(weights, "num_bits")
    is_float = weights.text("type", default="int") == "float"
    size = weights.integer("group_size", default=0, minimum=-1, maximum=2**20)
    strategy = weights.text("strategy", default="group" if size > 0 else "tensor")
    named = () if set(targets) <= {"Linear"} else targets
    if strategy in ("group", "tensor_group") and size > 0:
        is_nvfp4 = is_float and bits == 4
        return QuantizationSpec(
            method="nvfp4" if is_nvfp4 and size == 16 else "compressed-tensors",
            bits=bits,
            granularity="group",
            group_size=size,
            scale_dtype="fp8" if is_nvfp4 else "bfloat16",
            has_zero_points=not is_float and not weights.flag("symmetric", default=True),
            targets=named,
        )
    if strategy == "block":
        shape = weights.integers("block_structure", minimum=1) or [128, 128]
        return QuantizationSpec(
            "compressed-tensors", bits, "block", block_shape=(shape[0], shape[-1]), scale_dtype="float32", targets=named
        )
    granularity = "channel" if strategy == "channel" else "tensor"
    return QuantizationSpec("compressed-tensors", bits, granularity, scale_dtype="float32", targets=named)  # type: ignore[arg-type]


_ALGORITHMS: dict[str, QuantizationSpec] = {
    "FP8": QuantizationSpec("modelopt", 8, "tensor", scale_dtype="float32", static_input_scale=True),
    "FP8_PER_CHANNEL_PER_TOKEN": QuantizationSpec("modelopt", 8, "channel", scale_dtype="float32"),
    "FP8_PB_WO": QuantizationSpec("modelopt", 8, "block", block_shape=(128, 128), scale_dtype="float32"),
    "NVFP4": QuantizationSpec("nvfp4", 4, "group", group_size=16, scale_dtype="fp8", static_input_scale=True),
    "W4A16_NVFP4": QuantizationSpec("nvfp4", 4, "group", group_size=16, scale_dtype="fp8"),
    "NVFP4_AWQ": QuantizationSpec("nvfp4", 4, "group", group_size=16, scale_dtype="fp8"),
    "W4A8_NVFP4_FP8": QuantizationSpec("nvfp4", 4, "group", group_size=16, scale_dtype="fp8"),
    "MXFP8": QuantizationSpec("modelopt", 8, "group", group_size=32, scale_dtype="fp8"),
    "MXFP4": QuantizationSpec("mxfp4", 4, "group", group_size=32, scale_dtype="fp8"),
    "W4A16_AWQ": QuantizationSpec("modelopt", 4, "group", group_size=128),
    "W4A8_AWQ": QuantizationSpec("modelopt", 4, "group", group_size=128),
    "INT4_AWQ": QuantizationSpec("modelopt", 4, "group", group_size=128),
    "INT8_SQ": QuantizationSpec("modelopt", 8, "channel", scale_dtype="float32"),
    "W8A8_SQ_PER_CHANNEL": QuantizationSpec("modelopt", 8, "channel", scale_dtype="float32"),
}
"""ModelOpt's names of weight formats."""


def _algorithm(section: ConfigView, name: str) -> QuantizationSpec:
    found = _ALGORITHMS.get(name.upper())
    if found is None:
        raise section.reject("quant_algo", "one of " + ", ".join(_ALGORITHMS))
    return found


def _modelopt(section: ConfigView) -> QuantizationSpec | None:
    inner = section.section("quantization") or section
    ignore = _names(inner, "exclude_modules", "ignore") or _names(section, "ignore")
    algorithm = inner.text("quant_algo", default="")
    layers = inner.section("quantized_layers")
    if section.has("moe_quant_algo") and section.has("config_groups"):
        return _modelopt_groups(section, ignore)
    if layers is not None:
        return _mixed(layers, ignore)
    if algorithm.upper() == "MIXED_PRECISION" or not algorithm:
        return _modelopt_groups(section, ignore)
    found = _algorithm(inner, algorithm)
    size = inner.integer("group_size", default=found.group_size or 0, minimum=0, maximum=2**20)
    if found.granularity == "group" and size:
        found = replace(found, group_size=size)
    return replace(found, ignore=ignore)


def _modelopt_groups(section: ConfigView, ignore: tuple[str, ...]) -> QuantizationSpec | None:
    """Mixed precision by config groups; a checkpoint in DeepSeek's fp8 keeps that for all but the named experts."""
    found = _compressed_tensors(section)
    if found is None or not section.has("moe_quant_algo"):
        return None if found is None else replace(found, ignore=ignore)
    rest = _fp8(section)
    return replace(rest, others=(replace(found, ignore=(), targets=("re:.*experts.*",)),))


def _mixed(layers: ConfigView, ignore: tuple[str, ...]) -> QuantizationSpec | None:
    """``quantized_layers``: one algorithm per module. What is not named stays as it is."""
    by_algorithm: dict[str, list[str]] = {}
    for name in list(layers.config)[:_MAX_NAMES]:
        layer = layers.section(name)
        if layer is not None:
            by_algorithm.setdefault(layer.text("quant_algo"), []).append(name)
    found = [
        replace(_algorithm(layers, name), ignore=ignore, targets=tuple(modules))
        for name, modules in by_algorithm.items()
    ]
    return replace(found[0], others=tuple(found[1:])) if found else None


_READERS: dict[str, Callable[[ConfigView], QuantizationSpec | None]] = {
    "awq": _awq,
    "gptq": _gptq,
    "auto-round": _auto_round,
    "intel/auto-round": _auto_round,
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm_fp8,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "compressed_tensors": _compressed_tensors,
    "sparseml": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "modelopt_mixed": _modelopt,
}

"""torchao's checkpoints: the class that packed the weights, or one class per module.

The rules are those of vllm/model_executor/layers/quantization/torchao.py (vLLM 0.33.0): from_config, should_skip and
get_quant_method. Heads and embeddings are never quantized. What a class stores is torchao's
(torchao/quantization/quant_api.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.quantization.formats import MXFP4, MXFP8, NVFP4, QuantizationSpec, Rule, with_rules
from kvplan.catalog.quantization.matching import Names
from kvplan.catalog.quantization.modules import ModuleNaming
from kvplan.catalog.quantization.sections import mapping, names
from kvplan.errors import KvplanError

_BY_NAME: Final = ("ModuleFqnToConfig", "FqnToConfig")


def read_torchao(section: ConfigView, naming: ModuleNaming) -> QuantizationSpec | None:
    """Read ``quant_type.default``. A module map's entry is a name, or a regular expression of all of it."""
    types = section.section("quant_type")
    default = None if types is None else types.section("default")
    if default is None:
        raise section.reject("quant_type", "an object with 'default', torchao's class and its values")
    skipped = list(names(section, "modules_to_not_convert"))
    if default.config.get("_type") not in _BY_NAME:
        return with_rules(_skipped(skipped), Rule(_stored(default.config), kinds=("linear",)), naming=naming)
    values = mapping(default.config.get("_data"))
    listed = next((mapping(values[key]) for key in ("module_fqn_to_config", "fqn_to_config") if key in values), {})
    skipped += [str(name) for name, given in listed.items() if given is None]
    return with_rules(_skipped(skipped), *_by_module(listed), naming=naming)


def _skipped(listed: list[str]) -> Rule:
    return Rule(None, Names("path", tuple(listed)))


def _by_module(listed: Mapping[str, Any]) -> Iterable[Rule]:
    """Names first, then expressions in order, then ``_default``."""
    given = {str(name): _stored(mapping(value)) for name, value in listed.items() if value is not None}
    patterns = [name for name in given if name.startswith("re:")]
    for name, stored in given.items():
        if name not in patterns and name != "_default":
            yield Rule(stored, Names("equal", (name,)), kinds=("linear",))
    for name in patterns:
        yield Rule(given[name], Names("fullmatch", (name[3:],)), kinds=("linear",))
    if "_default" in given:
        yield Rule(given["_default"], kinds=("linear",))


def _stored(given: Mapping[str, Any]) -> QuantizationSpec:
    """What a class stores. KvplanError for one that is not known."""
    # The class that packs, where another one has prepared the weights for it (AWQ, SmoothQuant).
    base = mapping(given.get("_data")).get("base_config")
    given = mapping(base) if isinstance(base, Mapping) else given
    name = str(given.get("_type"))
    known = _CLASSES.get(name)
    if known is None:
        raise KvplanError(
            f"Unknown torchao format '{name}'.",
            hint="--assume quantization_config=null sizes the weights as if they were not quantized",
        )
    return known(mapping(given.get("_data")))


def _size(values: Mapping[str, Any], default: int) -> int:
    size = values.get("group_size", default)
    return size if isinstance(size, int) and 0 < size <= 2**20 else default


def _int4(values: Mapping[str, Any]) -> QuantizationSpec:
    """One scale and one zero point in 16 bits for each group."""
    size = _size(values, 128)
    return QuantizationSpec("torchao", 4, "group", group_size=size, scale_dtype="float32")  # two of 16 bits


def _int4_in_8(values: Mapping[str, Any]) -> QuantizationSpec:
    """4-bit values, each in a byte of its own."""
    size = _size(values, 32)
    return QuantizationSpec("torchao", 8, "group", group_size=size, scale_dtype="float32")


def _int8(values: Mapping[str, Any]) -> QuantizationSpec:
    size = values.get("group_size")
    if isinstance(size, int) and 0 < size <= 2**20:
        return QuantizationSpec("torchao", 8, "group", group_size=size, scale_dtype="bfloat16")
    return QuantizationSpec("torchao", 8, "channel", scale_dtype="bfloat16")


def _float8(values: Mapping[str, Any]) -> QuantizationSpec:
    """``granularity`` PerTensor (the default) or PerRow, of inputs and weights alike or of each."""
    granularity = values.get("granularity")
    last = granularity[-1] if isinstance(granularity, list) and granularity else granularity
    by_row = mapping(last).get("_type") == "PerRow"
    return QuantizationSpec("torchao", 8, "channel" if by_row else "tensor", scale_dtype="float32")


def _mx(values: Mapping[str, Any]) -> QuantizationSpec:
    dtype = str(mapping(values.get("weight_dtype")).get("_data", values.get("weight_dtype")))
    return MXFP4 if "float4" in dtype else MXFP8


_CLASSES: Final[dict[str, Callable[[Mapping[str, Any]], QuantizationSpec]]] = {
    "Int4WeightOnlyConfig": _int4,
    "Float8DynamicActivationInt4WeightConfig": _int4,
    "Int8DynamicActivationInt4WeightConfig": _int4_in_8,
    "Int8DynamicActivationIntxWeightConfig": _int4_in_8,
    "IntxWeightOnlyConfig": _int4_in_8,
    "Int8WeightOnlyConfig": _int8,
    "Int8DynamicActivationInt8WeightConfig": _int8,
    "Float8WeightOnlyConfig": _float8,
    "Float8DynamicActivationFloat8WeightConfig": _float8,
    "NVFP4DynamicActivationNVFP4WeightConfig": lambda _: NVFP4,
    "NVFP4WeightOnlyConfig": lambda _: NVFP4,
    "MXDynamicActivationMXWeightConfig": _mx,
}

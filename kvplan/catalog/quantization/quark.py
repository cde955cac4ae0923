"""AMD Quark's checkpoints: a global format, others for modules by name, and a list of modules that stay as they are.

The rules are those of vllm/model_executor/layers/quantization/quark (vLLM 0.33.0): get_quant_method_target and
_find_matched_config of quark.py, should_ignore_layer of utils.py. Heads and embeddings are never quantized.
"""

from __future__ import annotations

from typing import Any, Final

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.quantization.formats import (
    MATRICES,
    MXFP4,
    MXFP6,
    NVFP4,
    NVFP4_STATIC,
    QuantizationSpec,
    Rule,
    with_rules,
)
from kvplan.catalog.quantization.matching import Names
from kvplan.catalog.quantization.modules import ModuleNaming
from kvplan.catalog.quantization.sections import entries, mapping, names

_BITS: Final = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8}
_OCP: Final = {"fp4": MXFP4, "fp6_e3m2": MXFP6, "fp6_e2m3": MXFP6}


def read_quark(section: ConfigView, naming: ModuleNaming) -> QuantizationSpec | None:
    """Read ``exclude``, ``layer_quant_config`` and ``global_quant_config``."""
    if section.section("layer_type_quant_config") is not None and section.config["layer_type_quant_config"]:
        section.assume("The config's layer_type_quant_config is left out: vLLM 0.33 matches none of its entries.")
    everything = section.section("global_quant_config")
    stored = None if everything is None else _stored(everything)
    # A glob where there is an asterisk; else the module's name is a part of the entry.
    named = (
        Rule(_stored(given), Names("glob" if "*" in pattern else "contains", (pattern,)), kinds=MATRICES)
        for pattern, given in entries(section, "layer_quant_config").items()
        if given is not None
    )
    excluded = _excluded(names(section, "exclude"))
    return with_rules(*excluded, *named, Rule(stored, kinds=MATRICES), naming=naming, main=stored)


def _excluded(listed: tuple[str, ...]) -> tuple[Rule, ...]:
    """Whole names, or regular expressions after ``re:``. One expert's matrix exempts all experts of its layer."""
    literal = tuple(entry for entry in listed if not entry.startswith("re:"))
    patterns = tuple(entry[3:] for entry in listed if entry.startswith("re:"))
    return (
        Rule(None, Names("equal", literal)),
        Rule(None, Names("below", literal), kinds=("experts",)),
        Rule(None, Names("match", patterns, of_experts="group")),
    )


def _stored(given: ConfigView) -> QuantizationSpec | None:
    """The format of one entry's ``weight``; None where it says none. KvplanError for an unknown dtype."""
    weight: Any = given.config.get("weight")
    inputs = given.config.get("input_tensors")
    if isinstance(weight, list):
        if len(weight) > 1:
            return _of_two_levels(weight, given)
        weight = weight[0] if weight else None
    if weight is None:
        return None
    found = mapping(weight)
    dtype, scheme = str(found.get("dtype")), found.get("qscheme")
    if dtype in _OCP:
        return _OCP[dtype]
    if dtype not in _BITS:
        raise given.reject("weight", "a weight of int4, int8, fp4, fp6 or fp8")
    view = ConfigView(found, path=f"{given.path}weight.", assumptions=given.assumptions)
    return _of_one_level(view, _BITS[dtype], scheme, inputs)


def _of_one_level(weight: ConfigView, num_bits: int, scheme: object, inputs: object) -> QuantizationSpec:
    is_static = mapping(inputs).get("is_dynamic") is False
    if scheme == "per_block":
        shape = weight.integers("block_size", minimum=1) or [128, 128]
        scale = "fp8" if weight.config.get("scale_type") == "float8_e8m0fnu" else "float32"
        return QuantizationSpec("quark", num_bits, "block", block_shape=(shape[0], shape[-1]), scale_dtype=scale)
    if scheme == "per_group":
        size = weight.integer("group_size", minimum=1, maximum=2**20)
        is_power = num_bits == 8 and weight.config.get("scale_format") == "e8m0"
        return QuantizationSpec(
            "quark",
            num_bits,
            "group",
            group_size=size,
            scale_dtype="fp8" if is_power else "bfloat16",
            has_zero_points=weight.config.get("symmetric") is False,
        )
    return QuantizationSpec(
        "quark",
        num_bits,
        "channel" if scheme == "per_channel" else "tensor",
        scale_dtype="float32",
        static_input_scale=is_static,
    )


def _of_two_levels(weight: list[Any], given: ConfigView) -> QuantizationSpec:
    """fp4 with scales in fp8 is NVFP4; int4 with a scale of the whole in fp8 has one scale per output channel."""
    first, second = (mapping(each) for each in weight[:2])
    if first.get("dtype") == "fp4":
        inputs = given.config.get("input_tensors")
        return NVFP4 if inputs is None else NVFP4_STATIC
    if second.get("dtype") == "int4":
        return QuantizationSpec("quark", 4, "channel", scale_dtype="float32")
    raise given.reject("weight", "a weight of fp4 with fp8 scales, or of int4")

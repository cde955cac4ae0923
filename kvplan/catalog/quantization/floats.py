"""8- and 4-bit floats with a list of modules that stay as they are: fp8, FBGEMM, MXFP4, MXFP8, FP-Quant.

The rules are those of vllm/model_executor/layers/quantization/{fp8,fbgemm_fp8,mxfp4,fp_quant,experts_int8}.py and of
vllm/models/deepseek_v4/quant_config.py (vLLM 0.33.0). None of them quantizes a head or an embedding: these are no
LinearBase.
"""

from __future__ import annotations

from dataclasses import replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.quantization.formats import ALGORITHMS, MXFP4, NVFP4, QuantizationSpec, Rule, with_rules
from kvplan.catalog.quantization.matching import Names
from kvplan.catalog.quantization.modelopt import read_excluding
from kvplan.catalog.quantization.modules import ModuleNaming
from kvplan.catalog.quantization.sections import block_shape, names


def skipped(ignored: tuple[str, ...]) -> tuple[Rule, Rule]:
    """Return the rules of is_layer_skipped with whole names: an entry that is below the experts exempts them all."""
    of_experts = tuple(entry for entry in ignored if "experts" in entry)
    return (
        Rule(None, Names("equal", ignored), kinds=("linear",)),
        Rule(None, Names("contains", of_experts, of_experts="group"), kinds=("experts",)),
    )


def read_fp8(section: ConfigView, naming: ModuleNaming) -> QuantizationSpec | None:
    """Read ``fp8``: one float32 scale per tensor or per tile. ``expert_dtype`` and ``store_dtype``: of the experts."""
    shape = block_shape(section, "weight_block_size")
    is_static = section.text("activation_scheme", default="dynamic") == "static"
    if shape is None:
        dense = QuantizationSpec("fp8", 8, "tensor", scale_dtype="float32", static_input_scale=is_static)
    else:
        dense = QuantizationSpec("fp8", 8, "block", block_shape=shape, scale_dtype="float32")
    experts = _experts_of_fp8(section)
    if experts is MXFP4 and section.config.get("expert_dtype") == "fp4":
        dense = replace(dense, scale_dtype="fp8")  # is_scale_e8m0
    ignored = names(section, "ignored_layers", "modules_to_not_convert")
    return with_rules(
        *skipped(ignored),
        Rule(dense, kinds=("linear",)),
        Rule(dense if experts is None else experts, kinds=("experts",)),
        naming=naming,
    )


def _experts_of_fp8(section: ConfigView) -> QuantizationSpec | None:
    if section.config.get("expert_dtype") == "fp4" or section.config.get("store_dtype") == "mxfp4":
        return MXFP4
    return None


def read_fp8_with_other_experts(section: ConfigView, naming: ModuleNaming) -> QuantizationSpec | None:
    """Read an fp8 checkpoint whose experts ModelOpt has packed otherwise (``moe_quant_algo``)."""
    algorithm = ALGORITHMS.get(section.text("moe_quant_algo").upper(), NVFP4)
    found = read_fp8(section, naming)
    if found is None or found.rules is None:
        return found
    rest = tuple(replace(rule, stored=algorithm) if rule.kinds == ("experts",) and rule.stored else rule
                 for rule in found.rules.rules)  # fmt: skip
    return with_rules(*rest, naming=naming)


def read_fbgemm_fp8(section: ConfigView, naming: ModuleNaming) -> QuantizationSpec | None:
    """Read ``fbgemm_fp8``: one float32 scale per output channel, of linear layers alone."""
    stored = QuantizationSpec("fbgemm_fp8", 8, "channel", scale_dtype="float32")
    rules = skipped(names(section, "modules_to_not_convert"))
    return with_rules(rules[0], Rule(stored, kinds=("linear",)), naming=naming)


def read_mxfp4(section: ConfigView, naming: ModuleNaming) -> QuantizationSpec | None:
    """Read ``mxfp4``: of the routed experts alone, whatever the list says (Mxfp4Config.get_quant_method)."""
    return with_rules(Rule(MXFP4, kinds=("experts",)), naming=naming)


def read_mxfp8(section: ConfigView, naming: ModuleNaming) -> QuantizationSpec | None:
    """Read ``mxfp8`` as MiniMax writes it: ModelOpt's MXFP8 with a list called ``ignored_layers``."""
    return read_excluding(ALGORITHMS["MXFP8"], names(section, "ignored_layers"), naming)


def read_fp_quant(section: ConfigView, naming: ModuleNaming) -> QuantizationSpec | None:
    """Read ``fp_quant``: MXFP4 or NVFP4 of linear layers, those excepted whose names end in an entry."""
    stored = NVFP4 if section.text("forward_dtype", default="mxfp4") == "nvfp4" else MXFP4
    exempt = Names("suffix", names(section, "modules_to_not_convert"))
    return with_rules(Rule(None, exempt), Rule(stored, kinds=("linear",)), naming=naming)


def read_experts_int8(section: ConfigView, naming: ModuleNaming) -> QuantizationSpec | None:
    """Read ``experts_int8``: the experts are made 8-bit while loading, one float32 scale per output channel."""
    stored = QuantizationSpec("experts_int8", 8, "channel", scale_dtype="float32")
    return with_rules(Rule(stored, kinds=("experts",)), naming=naming)

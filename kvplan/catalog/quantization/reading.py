"""Reads a config's ``quantization_config`` into a ``QuantizationSpec``: which loader it is for, and what it says.

Where the section is looked for, and in which order: get_quant_config of vllm/model_executor/model_loader/
weight_utils.py. What its methods are called: QUANTIZATION_METHODS of vllm/model_executor/layers/quantization, and what
its checkpoints' makers write (vLLM 0.33.0).

The readers of 8- and 4-bit floats with a list of modules that stay as they are (fp8, FBGEMM, MXFP4, MXFP8, FP-Quant)
stand here too. Their rules are those of
vllm/model_executor/layers/quantization/{fp8,fbgemm_fp8,mxfp4,fp_quant,experts_int8}.py and of
vllm/models/deepseek_v4/quant_config.py (vLLM 0.33.0). None of them quantizes a head or an embedding: these are no
LinearBase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.quantization.compressed import read_compressed_tensors
from kvplan.catalog.quantization.formats import ALGORITHMS, MXFP4, NVFP4, QuantizationSpec, Rule, with_rules
from kvplan.catalog.quantization.integers import read_auto_round, read_awq, read_bitsandbytes, read_gptq
from kvplan.catalog.quantization.matching import Names
from kvplan.catalog.quantization.modelopt import read_excluding, read_modelopt
from kvplan.catalog.quantization.modules import ModuleNaming, naming_of
from kvplan.catalog.quantization.quark import read_quark
from kvplan.catalog.quantization.sections import block_shape, names
from kvplan.catalog.quantization.torchao import read_torchao
from kvplan.errors import KvplanError


def skipped(ignored: tuple[str, ...]) -> tuple[Rule, Rule]:
    """Return the rules of is_layer_skipped with whole names: an entry that is below the experts exempts them all."""
    of_experts = tuple(entry for entry in ignored if "experts" in entry)
    return (
        Rule(None, Names("equal", ignored), kinds=("linear", "lookup")),
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
        # A table of n-grams (vllm/models/qwen4_exp) is named by its parts; its one scale is as nothing beside it.
        Rule(None, Names("below", ignored), kinds=("lookup",)),
        Rule(dense, kinds=("linear", "lookup")),
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


Reader = Callable[[ConfigView, ModuleNaming], QuantizationSpec | None]


def read_quantization(view: ConfigView) -> QuantizationSpec | None:
    """The format of the published weights, or None where they are plain. KvplanError for an unknown format."""
    inner = view.section("text_config")
    section = view.section("quantization_config")
    if section is None and inner is not None:
        section = inner.section("quantization_config")
    section = view.section("compression_config") if section is None else section
    if section is None:
        return None
    method = _method(section)
    reader = read_fp8_with_other_experts if section.has("moe_quant_algo") else _READERS.get(method)
    if reader is None:
        raise KvplanError(
            f"Unknown weight format '{method}'.",
            hint="--assume quantization_config=null sizes the weights as if they were not quantized",
        )
    found = reader(_for_its_model(view, section, method), naming_of(view.config))
    return None if found is None else replace(found, kv_cache_dtype=_kv_cache_dtype(section), quant_method=method)


def _for_its_model(view: ConfigView, section: ConfigView, method: str) -> ConfigView:
    """The section with what the rest of the config decides: in which format the experts of some models are.

    vLLM takes Kimi K3's packed experts alone to be quantized, whatever else its config targets. DeepSeek V4's are fp4
    where ``expert_dtype`` does not say fp8 (vllm/models/deepseek_v4/quant_config.py).
    """
    named = view.texts("architectures") or []
    if "KimiK3ForConditionalGeneration" in named and section.config.get("format") == "mxfp4-pack-quantized":
        return section.changed({"packed_experts_only": True})
    is_v4 = method in ("fp8", "deepseek_v4_fp8") and view.config.get("model_type") == "deepseek_v4"
    dtype = view.config.get("expert_dtype", "fp4" if is_v4 else None)
    return section.changed({"expert_dtype": dtype}) if dtype is not None else section


def _method(section: ConfigView) -> str:
    named = section.text("quant_method", default="").casefold()
    if section.has("moe_quant_algo"):
        return "modelopt"
    if not named and (section.has("quant_algo") or section.has("quantization")):
        return "modelopt"
    if not named and section.has("config_groups"):
        return "compressed-tensors"
    if not named and (section.has("load_in_4bit") or section.has("load_in_8bit")):
        return "bitsandbytes"
    return named


def _kv_cache_dtype(section: ConfigView) -> str | None:
    """The KV dtype the checkpoint has scales for: fp8 or None."""
    inner = section.section("quantization") if isinstance(section.config.get("quantization"), Mapping) else None
    for where in (section, inner):
        if where is not None and where.has("kv_cache_quant_algo"):
            return "fp8" if where.text("kv_cache_quant_algo").upper().startswith("FP8") else None
    scheme = section.config.get("kv_cache_scheme")
    if isinstance(scheme, str):
        return "fp8" if scheme.upper().startswith("FP8") else None
    if isinstance(scheme, Mapping):
        if scheme.get("dynamic") is True:  # nothing was calibrated
            return None
        bits, kind = scheme.get("num_bits"), scheme.get("type")
        return {"float": "fp8", "int": "int8"}.get(str(kind)) if bits == 8 else None
    return None


_READERS: Final[dict[str, Reader]] = {
    **dict.fromkeys(("awq", "auto_awq", "awq_marlin", "cpu_awq"), read_awq),
    **dict.fromkeys(("gptq", "auto_gptq", "gptq_marlin", "gptq_bitblas"), read_gptq),
    **dict.fromkeys(("auto-round", "auto_round", "intel/auto-round", "inc"), read_auto_round),
    **dict.fromkeys(("fp8", "deepseek_v4_fp8"), read_fp8),
    "fbgemm_fp8": read_fbgemm_fp8,
    "fp_quant": read_fp_quant,
    **dict.fromkeys(("mxfp4", "gpt_oss_mxfp4"), read_mxfp4),
    "mxfp8": read_mxfp8,
    "experts_int8": read_experts_int8,
    "bitsandbytes": read_bitsandbytes,
    **dict.fromkeys(("compressed-tensors", "compressed_tensors", "sparseml"), read_compressed_tensors),
    **dict.fromkeys(("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"), read_modelopt),
    "quark": read_quark,
    "torchao": read_torchao,
}
"""By the method's name. ``moe_wna16`` and ``humming`` are kernels for checkpoints of other names, which a config does
not call so; ``online`` and its shorthands are made while loading."""

"""Packed integers: AWQ, GPTQ, AutoRound and bitsandbytes.

The rules are those of vLLM 0.33.0, vllm/model_executor/layers/quantization: auto_awq.py, auto_gptq.py with
utils/gptq_utils.py, inc/inc.py with inc/config_parser.py; bitsandbytes.py as it was last there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.quantization.formats import MATRICES, MXFP4, MXFP8, QuantizationSpec, Rule, with_rules
from kvplan.catalog.quantization.matching import Names
from kvplan.catalog.quantization.modules import ModuleKind, ModuleNaming
from kvplan.catalog.quantization.sections import bits, block_shape, entries, flattened, grouped, names

_UNQUANTIZED_BITS: Final = 16
_WITH_HEAD: Final[tuple[ModuleKind, ...]] = ("linear", "experts", "head")


def read_awq(section: ConfigView, naming: ModuleNaming) -> QuantizationSpec | None:
    """Read ``awq``: an entry of ``modules_to_not_convert`` exempts every module with that part in its name."""
    stored = QuantizationSpec(
        method="awq",
        bits=bits(section, "w_bit", "bits"),
        **grouped(section, "q_group_size", "group_size"),
        has_zero_points=section.flag("zero_point", default=True),
    )
    kept = Names("within", names(section, "modules_to_not_convert"), of_experts="group")
    return with_rules(Rule(None, kept), Rule(stored, kinds=_kinds(section)), naming=naming)


def _kinds(section: ConfigView) -> tuple[ModuleKind, ...]:
    """``lm_head``: whether the head is quantized too."""
    return _WITH_HEAD if section.config.get("lm_head") is True else MATRICES


def read_gptq(section: ConfigView, naming: ModuleNaming) -> QuantizationSpec | None:
    """Read ``gptq``. Zero points are there even when it is symmetric; ``desc_act`` adds the group of every input row.

    ``dynamic`` has patterns in order: "-:" for what stays as it is, "+:" or nothing for other values of its keys.
    ``modules_in_block_to_quantize``: where it is given, only modules with such a part in their names are quantized.
    """
    stored = _gptq_format(section)
    listed = flattened(section.config.get("modules_in_block_to_quantize"))
    others = Rule(None, Names("within", listed), kinds=("linear", "head"), is_not=True)
    skipped = Names("within", names(section, "modules_to_not_convert"))
    return with_rules(
        Rule(None, skipped),
        *((others,) if listed else ()),
        *(_dynamic_rule(section, stored, pattern, given) for pattern, given in entries(section, "dynamic").items()),
        Rule(stored, kinds=_kinds(section)),
        naming=naming,
        main=stored,
    )


def _gptq_format(section: ConfigView) -> QuantizationSpec:
    return QuantizationSpec(
        method="gptq",
        bits=bits(section, "bits"),
        **grouped(section, "group_size"),
        has_zero_points=True,
        has_act_order=section.config.get("desc_act") is True,
    )


def _dynamic_rule(section: ConfigView, stored: QuantizationSpec, pattern: str, given: ConfigView | None) -> Rule:
    named = Names("match", (pattern.removeprefix("-:").removeprefix("+:"),))
    if pattern.startswith("-:"):
        return Rule(None, named)
    return Rule(stored if given is None else _overridden(stored, given), named, kinds=_kinds(section))


def _overridden(stored: QuantizationSpec, given: ConfigView) -> QuantizationSpec:
    """``stored`` with the ``bits`` and ``group_size`` of an entry."""
    changed: dict[str, Any] = {"bits": bits(given, "bits")} if given.has("bits") else {}
    if given.has("group_size"):
        changed |= grouped(given, "group_size")
    return replace(stored, **changed)


def read_auto_round(section: ConfigView, naming: ModuleNaming) -> QuantizationSpec | None:
    """Read ``auto-round``: integers packed as GPTQ or AWQ do, MXFP4, MXFP8, or fp8 in tiles.

    An entry of ``extra_config`` decides for the module of its name, then for those whose names end in it, then, as a
    regular expression, for those that it is found in. Other heads stay as they are; ``block_name_to_quantize`` names
    the blocks outside which everything does.
    """
    stored = _auto_round_format(section)
    given = entries(section, "extra_config")
    formats = {name: _entry_format(section, stored, entry) for name, entry in given.items() if entry is not None}
    unsaid = tuple(name for name, entry in given.items() if entry is not None and not entry.has("bits"))
    blocks = flattened(section.config.get("block_name_to_quantize") or section.config.get("to_quant_block_names"))
    blocks = tuple(part.strip() for block in blocks for part in block.split(",") if part.strip())
    patterns = [name for name in formats if not _SPECIAL.isdisjoint(name)]
    default = Rule(stored, Names("starts", blocks), kinds=_WITH_HEAD) if blocks else Rule(stored, kinds=MATRICES)
    return with_rules(
        Rule(None, Names("equal", unsaid, of_experts="group")),  # INCConfig: "bits" that are not said are 16
        *_joined("equal", formats, formats),
        *_joined("suffix", formats, formats),
        *(Rule(formats[name], Names("below", (name,)), kinds=("experts",)) for name in formats if "expert" in name),
        *_joined("search", patterns, formats),
        default,
        naming=naming,
        main=stored,
    )


_SPECIAL: Final = frozenset("*+?^$()[]{}|\\")
"""An entry of ``extra_config`` with one of these is a regular expression too."""


def _joined(mode: Any, listed: Iterable[str], formats: dict[str, QuantizationSpec | None]) -> Iterable[Rule]:
    """A rule for each run of entries that mean the same: there is an entry for every module."""
    for stored, run in groupby(listed, key=formats.__getitem__):
        yield Rule(stored, Names(mode, tuple(run)), kinds=_WITH_HEAD)


def _auto_round_format(section: ConfigView) -> QuantizationSpec:
    """``data_type`` int, mx_fp or fp; ``packing_format`` says how integers are laid out, which takes the same room."""
    kind = section.text("data_type", default="int")
    num_bits = bits(section, "bits")
    if "mx_fp" in kind:
        return MXFP4 if num_bits == 4 else MXFP8
    if kind in ("fp", "fp8") and isinstance(section.config.get("group_size"), list):
        tile = block_shape(section, "group_size")
        return QuantizationSpec("fp8", num_bits, "block", block_shape=tile, scale_dtype="float32")
    if kind != "int":
        raise section.reject("data_type", "int, mx_fp or fp with tiles")
    return QuantizationSpec("gptq", num_bits, **grouped(section, "group_size"), has_zero_points=True)


def _entry_format(section: ConfigView, stored: QuantizationSpec, entry: ConfigView) -> QuantizationSpec | None:
    """One entry of ``extra_config``: None for 16 bits and more. Keys that it leaves out are those of the section."""
    num_bits = entry.integer("bits", default=int(stored.bits), minimum=1, maximum=64)
    if num_bits >= _UNQUANTIZED_BITS:
        return None
    merged = {key: value for key, value in entry.config.items() if value is not None}
    kept = ("data_type", "bits", "group_size")
    own = {key: merged.get(key, section.config.get(key)) for key in kept}
    return _auto_round_format(ConfigView(own, path=entry.path, assumptions=entry.assumptions))


def read_bitsandbytes(section: ConfigView, naming: ModuleNaming) -> QuantizationSpec | None:
    """Read ``bitsandbytes``: an entry of ``llm_int8_skip_modules`` is a component of a name, or a module above."""
    kept = Rule(None, Names("above", names(section, "llm_int8_skip_modules")))
    if section.flag("load_in_8bit", "_load_in_8bit", default=False):
        stored = QuantizationSpec("bitsandbytes", 8, "channel", scale_dtype="float32")
    elif section.flag("load_in_4bit", "_load_in_4bit", default=False):
        stored = QuantizationSpec("bitsandbytes", 4, "group", group_size=64, scale_dtype="float32")
    else:
        return None
    return with_rules(kept, Rule(stored, kinds=MATRICES), naming=naming)

"""compressed-tensors: groups of modules, each with its ``weights``, and a list of modules that stay as they are.

The rules are those of vllm/model_executor/layers/quantization/compressed_tensors (vLLM 0.33.0): get_scheme_dict and
get_quant_method of compressed_tensors.py, find_matched_target of utils.py, get_moe_method of compressed_tensors_moe.py.
Scales are those that the schemes' create_weights make.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from typing import Final, Literal

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.quantization.formats import MXFP4, NVFP4, QuantizationSpec, Rule, with_rules
from kvplan.catalog.quantization.matching import Names
from kvplan.catalog.quantization.modules import ModuleKind, ModuleNaming
from kvplan.catalog.quantization.sections import bits, block_shape, names

_CLASSES: tuple[tuple[ModuleKind, tuple[str, ...]], ...] = (
    ("linear", ("columnparallellinear", "rowparallellinear", "qkvparallellinear", "replicatedlinear")),
    ("experts", ("routedexperts",)),
    ("head", ("parallellmhead",)),
    ("embedding", ("vocabparallelembedding",)),
)
"""vLLM's classes. A target is a part of their names: "Linear", "Embedding"."""


def read_compressed_tensors(section: ConfigView, naming: ModuleNaming) -> QuantizationSpec | None:
    """Read ``config_groups`` and ``ignore``."""
    if section.config.get("packed_experts_only"):
        return with_rules(*_ignored(section), Rule(MXFP4, kinds=("experts",)), naming=naming)
    return read_groups(section, _ignored(section), naming)


def _ignored(section: ConfigView) -> tuple[Rule, ...]:
    """An entry is a whole name, or a regular expression after ``re:``; experts are asked one by one."""
    return tuple(_by_name(None, names(section, "ignore"), "both"))


def read_groups(section: ConfigView, exempt: Iterable[Rule], naming: ModuleNaming) -> QuantizationSpec | None:
    """Return the formats of ``config_groups`` for what ``exempt`` leaves.

    The first target that names a module decides, whichever group it is in; where none names what vLLM merges, the first
    that names a part of it; where none does, the first that names its class. "Linear" is a class of experts as well.
    """
    targets: dict[str, QuantizationSpec] = {}
    for stored, listed in _groups(section):
        targets |= dict.fromkeys(listed, stored)  # a target that two groups name is the later one's, in its old place
    runs = tuple(_runs(targets))
    by_name = (rule for merged in _MERGED for listed, stored in runs for rule in _by_name(stored, listed, merged))
    by_class = (
        Rule(stored, kinds=(kind,))
        for target, stored in (*targets.items(), *_experts_as_linear(targets))
        for kind, classes in _CLASSES
        if not target.startswith("re:") and any(target.casefold() in each for each in classes)
    )
    return with_rules(*exempt, *by_name, *by_class, naming=naming, main=next(iter(targets.values()), None))


def _experts_as_linear(targets: dict[str, QuantizationSpec]) -> Iterable[tuple[str, QuantizationSpec]]:
    return (("RoutedExperts", targets["Linear"]),) if "Linear" in targets else ()


def _runs(targets: dict[str, QuantizationSpec]) -> Iterable[tuple[tuple[str, ...], QuantizationSpec]]:
    """Targets that follow each other and mean the same format, together: lists of one module each are long."""
    for stored, run in groupby(targets, key=targets.__getitem__):
        yield tuple(run), stored


_MERGED: Final[tuple[Literal["whole", "parts"], ...]] = ("whole", "parts")


def _by_name(
    stored: QuantizationSpec | None, listed: tuple[str, ...], merged: Literal["whole", "parts", "both"]
) -> Iterable[Rule]:
    literal = tuple(entry for entry in listed if not entry.startswith("re:"))
    patterns = tuple(entry[3:] for entry in listed if entry.startswith("re:"))
    yield Rule(stored, Names("equal", literal, of_experts="each", of_merged=merged))
    yield Rule(stored, Names("match", patterns, of_experts="each", of_merged=merged))


def _groups(section: ConfigView) -> Iterable[tuple[QuantizationSpec, tuple[str, ...]]]:
    """Each group's format and targets. Attention's, which mean the KV cache, are left out, as vLLM does."""
    groups = section.section("config_groups")
    for name in groups.config if groups is not None else ():
        group = groups.section(name) if groups is not None else None
        weights = group.section("weights") if group is not None else None
        if group is None or weights is None:
            continue
        targets = names(group, "targets") or ("Linear",)
        if len(targets) == 1 and targets[0].endswith("Attention"):
            continue
        layout = group.text("format", default=section.text("format", default=""))
        activations = group.section("input_activations")
        yield weight_format(weights, layout, activations), targets


def weight_format(weights: ConfigView, layout: str, activations: ConfigView | None) -> QuantizationSpec:
    """Return what ``weights`` of a group says. ``layout``: its ``format``; of packed ones scales are in 16 bits."""
    num_bits = bits(weights, "num_bits")
    is_float = weights.text("type", default="int") == "float"
    size = weights.integer("group_size", default=0, minimum=-1, maximum=2**20)
    strategy = weights.text("strategy", default="group" if size > 0 else "channel" if size < 0 else "tensor")
    has_static_inputs = activations is not None and activations.config.get("dynamic") is not True
    if strategy in ("group", "tensor_group") and size > 0:
        return _in_groups(weights, num_bits, size, strategy, is_float=is_float, has_static_inputs=has_static_inputs)
    if strategy == "block":
        shape = _tile(weights)
        return QuantizationSpec("compressed-tensors", num_bits, "block", block_shape=shape, scale_dtype="float32")
    is_packed = not is_float and (num_bits < 8 or layout == "pack-quantized")
    return QuantizationSpec(
        "compressed-tensors",
        num_bits,
        "channel" if strategy in ("channel", "group") else "tensor",
        scale_dtype="bfloat16" if is_packed else "float32",
        has_zero_points=is_packed and not weights.flag("symmetric", default=True),
        static_input_scale=is_float and has_static_inputs,
    )


def _tile(weights: ConfigView) -> tuple[int, int]:
    """``block_structure``: two numbers, or "128x128"."""
    given = weights.config.get("block_structure")
    if isinstance(given, str):
        sides = [int(side) for side in given.split("x") if side.isascii() and side.isdigit() and 0 < len(side) < 7]
        if len(sides) != 2 or not all(sides):
            raise weights.reject("block_structure", "two whole numbers")
        return sides[0], sides[1]
    return block_shape(weights, "block_structure") or (128, 128)


def _in_groups(
    weights: ConfigView, num_bits: int, size: int, strategy: str, *, is_float: bool, has_static_inputs: bool
) -> QuantizationSpec:
    """NVFP4 has groups of 16 and a scale of the whole; the scales of MXFP4 and MXFP8 are exponents in 8 bits."""
    if is_float and num_bits == 4 and size == 16:
        return replace(NVFP4, static_input_scale=has_static_inputs)
    if is_float and num_bits == 4 and size == 32 and strategy == "group":
        return MXFP4
    return QuantizationSpec(
        method="compressed-tensors",
        bits=num_bits,
        granularity="group",
        group_size=size,
        scale_dtype="fp8" if is_float and (num_bits < 8 or size == 32) else "bfloat16",
        has_zero_points=not is_float and not weights.flag("symmetric", default=True),
    )

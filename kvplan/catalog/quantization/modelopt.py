"""NVIDIA ModelOpt's checkpoints: one algorithm with exceptions, or one per module.

The rules are those of vllm/model_executor/layers/quantization/modelopt.py (vLLM 0.33.0): is_layer_excluded,
_resolve_quant_algo and get_quant_method. A head is quantized like a linear layer where no entry exempts it, and in
mixed precision where ``quantized_layers`` names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.quantization.compressed import read_groups
from kvplan.catalog.quantization.formats import ALGORITHMS, QuantizationSpec, Rule, with_rules
from kvplan.catalog.quantization.matching import Names
from kvplan.catalog.quantization.modules import ModuleKind, ModuleNaming
from kvplan.catalog.quantization.sections import entries, names

_TOWERS: Final = ("vision_tower", "vision_model", "vit_large_projector")
"""Parts of names that are exempt without being listed."""
_KINDS: tuple[ModuleKind, ...] = ("linear", "experts", "head")


def read_modelopt(section: ConfigView, naming: ModuleNaming) -> QuantizationSpec | None:
    """Read a section of config.json, or the file hf_quant_config.json with its section ``quantization``."""
    inner = section.section("quantization") or section
    ignored = names(inner, "exclude_modules", "ignore") or names(section, "ignore", "exclude_modules")
    algorithm = inner.text("quant_algo", default="").upper()
    if inner.has("quantized_layers"):
        return _read_mixed(inner, ignored, naming)
    if algorithm in ("MIXED_PRECISION", ""):
        return read_groups(section, _excluded(ignored), naming)
    found = _algorithm(inner, algorithm)
    size = inner.integer("group_size", default=found.group_size or 0, minimum=0, maximum=2**20)
    if found.granularity == "group" and size:
        found = replace(found, group_size=size)
    return read_excluding(found, ignored, naming)


def read_excluding(stored: QuantizationSpec, ignored: tuple[str, ...], naming: ModuleNaming) -> QuantizationSpec | None:
    """Return one format for everything that ``ignored`` does not exempt."""
    towers = Rule(None, Names("within", _TOWERS))
    return with_rules(*_excluded(ignored), towers, Rule(stored, kinds=_KINDS), naming=naming)


def _algorithm(section: ConfigView, name: str) -> QuantizationSpec:
    found = ALGORITHMS.get(name.upper())
    if found is None:
        raise section.reject("quant_algo", "one of " + ", ".join(ALGORITHMS))
    return found


def _excluded(ignored: tuple[str, ...]) -> tuple[Rule, ...]:
    """is_layer_excluded: whole names, parts of names, and globs.

    ``path*`` stands for ``path`` and ``path.*`` (apply_vllm_mapper).
    """
    listed = tuple(each for entry in ignored for each in _taken_apart(entry))
    of_experts = tuple(entry for entry in listed if "experts" in entry)
    return (
        Rule(None, Names("equal", listed, of_experts="group")),
        Rule(None, Names("contains", of_experts, of_experts="group"), kinds=("experts",)),
        Rule(None, Names("within", listed, of_experts="group")),
        Rule(None, Names("glob", tuple(entry for entry in listed if _is_glob(entry)), of_experts="group")),
    )


def _taken_apart(entry: str) -> tuple[str, ...]:
    return (entry[:-1], f"{entry[:-1]}.*") if len(entry) > 1 and entry[-1] == "*" and entry[-2] != "." else (entry,)


def _is_glob(entry: str) -> bool:
    return any(character in entry for character in "*?[")


def _read_mixed(section: ConfigView, ignored: tuple[str, ...], naming: ModuleNaming) -> QuantizationSpec | None:
    """``quantized_layers``: one algorithm per module. What is not named stays as it is.

    Experts are found by their own name, by what is below it, or by what stands beside them. Globs, which vLLM does not
    read here, are what short profiles have in place of lists.
    """
    listed: dict[QuantizationSpec, list[str]] = {}
    for name, layer in entries(section, "quantized_layers").items():
        if layer is not None:
            listed.setdefault(_format_of(layer), []).append(name)
    groups = {stored: tuple(modules) for stored, modules in listed.items()}
    return with_rules(
        *_excluded(ignored),
        *(_named("equal", stored, modules) for stored, modules in groups.items()),
        *(_named("glob", stored, [name for name in modules if "*" in name]) for stored, modules in groups.items()),
        *(_named("below", stored, modules) for stored, modules in groups.items()),
        *(_beside_experts(stored, modules) for stored, modules in groups.items()),
        naming=naming,
    )


def _format_of(layer: ConfigView) -> QuantizationSpec:
    found = _algorithm(layer, layer.text("quant_algo"))
    size = layer.integer("group_size", default=found.group_size or 0, minimum=0, maximum=2**20)
    if found.granularity == "group" and size:
        return replace(found, group_size=size)
    return replace(found, block_shape=(size, size)) if found.granularity == "block" and size else found


def _named(mode: str, stored: QuantizationSpec, modules: Iterable[str]) -> Rule:
    return Rule(stored, Names(mode, tuple(modules)))  # type: ignore[arg-type]


def _beside_experts(stored: QuantizationSpec, modules: Iterable[str]) -> Rule:
    """``...moe.gate_proj`` names the experts of ``...moe.experts``."""
    parents = dict.fromkeys(name.rpartition(".")[0] for name in modules)
    return Rule(stored, Names("equal", tuple(f"{parent}.experts" for parent in parents)), kinds=("experts",))

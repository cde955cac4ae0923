"""How published lists name modules: the comparisons of vLLM's loaders, each over a whole list at once.

Every mode is one function of vLLM 0.33.0 (vllm/model_executor/layers/quantization):

    equal      prefix_full_match of is_layer_skipped (utils/quant_utils.py); names of compressed-tensors
    within     its substr_match: an entry is a part of the name (AWQ, ModelOpt, modules_in_block_to_quantize of GPTQ)
    contains   its branch for experts: the name is a part of an entry
    glob       fnmatch (ModelOpt's exclude_modules, Quark's layer_quant_config)
    match      re.match: "re:" entries of compressed-tensors and Quark, ``dynamic`` of GPTQ
    fullmatch  "re:" entries of torchao's module maps
    search     patterns among AutoRound's ``extra_config`` (inc/config_parser.py)
    suffix     an entry is the end of the name, from a dot on (AutoRound's short names, fp_quant)
    path       an entry stands in the name between dots (should_skip of torchao.py)
    above      an entry is one component of the name, or a module above it (is_layer_skipped_bnb of bitsandbytes.py)
    below      the name is above an entry (RoutedExperts among ModelOpt's quantized_layers)
    starts     the name begins so (AutoRound's block_name_to_quantize)

Literal names are compared without the path to the layers (``model.language_model.``), which vLLM rewrites for each
architecture (hf_to_vllm_mapper). Regular expressions are not rewritten: they see the full names.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from typing import Final, Literal

from kvplan.catalog.quantization.modules import Module, plain_name

# fmt: off
Mode = Literal[
    "equal", "within", "contains", "glob", "match", "fullmatch", "search", "suffix", "path", "above", "below", "starts"
]
# fmt: on
_LAYER: Final = re.compile(r"(?:^|\.)layers\.(\d+)(?=\.)")
_REGULAR: Final = ("match", "fullmatch", "search")


@dataclass(frozen=True)
class Names:
    """A published list and how its entries are compared.

    ``of_experts``: the names by which it calls experts. ``each`` are the matrices of an expert, "group" all routed
    experts of a layer as one module. ``of_merged``: those of what vLLM merges, "whole" or in "parts".
    """

    mode: Mode
    entries: tuple[str, ...]
    of_experts: Literal["each", "group", "both"] = "both"
    of_merged: Literal["whole", "parts", "both"] = "both"

    def has(self, module: Module) -> bool:
        """Whether an entry names ``module``, or what vLLM merges it into."""
        return bool(self.entries) and any(self._test(name) for name in self._asked(module))

    @property
    def tells_layers(self) -> bool:
        """Whether an entry may be about some layers and not about others: it has a number, or stands for some."""
        if self.mode in _REGULAR:
            return bool(self.entries)
        return any(character.isdigit() or character in "?[" for entry in self.entries for character in entry)

    def _asked(self, module: Module) -> Sequence[str]:
        """The names to compare: plain ones where entries are plain too, else as they are spelled in full."""
        own, merged = (
            (module.plain, module.plain_merged)
            if self.mode in ("equal", "contains", "below")
            else (module.names, module.merged)
        )
        if module.kind == "experts":
            return {"each": own, "group": merged, "both": (*own, *merged)}[self.of_experts]
        if not merged:
            return own
        return {"parts": own, "whole": merged, "both": (*own, *merged)}[self.of_merged]

    @cached_property
    def _test(self) -> Callable[[str], bool]:
        if self.mode in _REGULAR:
            return _any_expression(self.entries, self.mode)
        plain = tuple(dict.fromkeys(map(plain_name, self.entries)))
        if self.mode == "equal":
            known = frozenset(plain)
            return lambda name: name in known
        if self.mode == "below":
            listed = sorted(plain)
            return lambda name: _has_below(listed, f"{name}.")
        if self.mode == "glob":
            return _by_layer(plain, _any_glob)
        return _by_layer(plain, _TESTS[self.mode])


def _any_expression(entries: Iterable[str], mode: str) -> Callable[[str], bool]:
    """One that is no regular expression matches nothing, as it stops vLLM from loading the model."""
    compiled = []
    for entry in entries:
        try:
            compiled.append(getattr(re.compile(entry), mode))
        except re.error:
            continue
    return lambda name: any(matches(name) is not None for matches in compiled)


def _has_below(listed: Sequence[str], start: str) -> bool:
    place = bisect_left(listed, start)
    return place < len(listed) and listed[place].startswith(start)


def _any_glob(entries: Sequence[str]) -> Callable[[str], bool]:
    """One expression for all: lists of hundreds are asked about thousands of names."""
    joined = re.compile("|".join(map(translate, entries)))
    return lambda name: joined.match(name) is not None or joined.match(plain_name(name)) is not None


def _within(entries: Sequence[str]) -> Callable[[str], bool]:
    return lambda name: any(entry in name for entry in entries)


def _contains(entries: Sequence[str]) -> Callable[[str], bool]:
    return lambda name: any(name in entry for entry in entries)


def _suffix(entries: Sequence[str]) -> Callable[[str], bool]:
    return lambda name: any(name == entry or name.endswith(f".{entry}") for entry in entries)


def _path(entries: Sequence[str]) -> Callable[[str], bool]:
    return lambda name: any(f".{entry}." in f".{name}." for entry in entries)


def _above(entries: Sequence[str]) -> Callable[[str], bool]:
    known = frozenset(entries)

    def test(name: str) -> bool:
        parts = plain_name(name).split(".")
        starts = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
        return not known.isdisjoint(name.split(".")) or not known.isdisjoint(starts)

    return test


def _starts(entries: Sequence[str]) -> Callable[[str], bool]:
    """An entry is the path to all layers, or to one."""
    paths = (*entries, *(plain_name(f"{entry}.0").removesuffix(".0") for entry in entries))
    return lambda name: name.startswith(paths) or plain_name(name).startswith(paths)


_TESTS: Final[dict[str, Callable[[Sequence[str]], Callable[[str], bool]]]] = {
    "within": _within,
    "contains": _contains,
    "suffix": _suffix,
    "path": _path,
    "above": _above,
    "starts": _starts,
}


def _by_layer(entries: Sequence[str], make: Callable[[Sequence[str]], Callable[[str], bool]]) -> Callable[[str], bool]:
    """The test that ``make`` makes, of the entries that name no layer and those that name the one asked about."""
    sorted_entries: dict[str | None, list[str]] = {}
    for entry in entries:
        found = _LAYER.search(entry)
        sorted_entries.setdefault(found.group(1) if found else None, []).append(entry)
    tests = {layer: make(listed) for layer, listed in sorted_entries.items()}

    def test(name: str) -> bool:
        found = _LAYER.search(name)
        asked = (tests.get(None), tests.get(found.group(1)) if found else None)
        return any(each is not None and each(name) for each in asked)

    return test

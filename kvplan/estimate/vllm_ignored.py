"""Which matrices a quantized checkpoint leaves alone: its ignore list, looked up by layer and module name.

Published lists name modules in full (``model.layers.10.self_attn*``), by pattern (``model.layers.*.self_attn``), by
regular expression (``re:.*lm_head``) or by their last name (``gate``).
"""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

_IN_A_LAYER = re.compile(r"(?:.*\.)?layers\.(\d+|\*)\.?(.*)")
_EVERY_LAYER = -1


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """An ignore list, sorted by the layer it speaks of. ``anywhere`` are patterns that name no layer."""

    by_layer: dict[int, tuple[str, ...]]
    anywhere: tuple[str, ...]
    expressions: tuple[re.Pattern[str], ...]

    def spares(self, layer: int | None, name: str) -> bool:
        """Whether the module ``name`` of layer ``layer`` (None: outside the layers) stays unquantized."""
        if layer is not None:
            patterns = (*self.by_layer.get(layer, ()), *self.by_layer.get(_EVERY_LAYER, ()))
            if any(_matches(pattern, name) for pattern in patterns):
                return True
        full = name if layer is None else f"model.layers.{layer}.{name}"
        if any(expression.search(full) for expression in self.expressions):
            return True
        return any(_matches(pattern, name) for pattern in self.anywhere)


def _matches(pattern: str, name: str) -> bool:
    """A pattern means the module itself and everything below it; the empty one means the whole layer."""
    if not pattern or pattern == "*":
        return True
    below = name == pattern or name.startswith(f"{pattern}.") or f".{pattern}." in f".{name}."
    return below or fnmatch.fnmatch(name, pattern)


@lru_cache(maxsize=64)
def ignore_rules(ignore: tuple[str, ...]) -> IgnoreRules:
    """The rules of an ignore list. Expressions that Python cannot read are left out, as the list's own tools would."""
    by_layer: defaultdict[int, list[str]] = defaultdict(list)
    anywhere: list[str] = []
    expressions: list[re.Pattern[str]] = []
    for text in ignore:
        if text.startswith("re:"):
            expressions.extend(_compiled(text[3:]))
            continue
        match = _IN_A_LAYER.fullmatch(text)
        if match is None:
            whole = re.fullmatch(r"(?:.*\.)?layers\.(\d+)\*", text)
            if whole is not None:
                by_layer[int(whole.group(1))].append("*")
            else:
                anywhere.append(text)
            continue
        layer = _EVERY_LAYER if match.group(1) == "*" else int(match.group(1))
        by_layer[layer].append(match.group(2))
    kept = {layer: tuple(patterns) for layer, patterns in by_layer.items()}
    return IgnoreRules(kept, tuple(anywhere), tuple(expressions))


def _compiled(text: str) -> list[re.Pattern[str]]:
    try:
        return [re.compile(text)]
    except re.error:
        return []

"""Names of architectures, from ``profiles/architectures.json``, which the planner reads too.

Only names: what a config calls an architecture, and which language model a wrapper holds. How a config is read, each
side says for itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvplan_engine.paths import architectures_file

Inner = str | Mapping[str | None, str] | None
"""The language model that a wrapper always holds, or the one of each ``version``."""

_WRAPPER = "wrappers.multimodal:read_multimodal"
_HOLD_WITHOUT_A_WORD = {
    "DeepseekVLV2ForCausalLM": "DeepseekV2ForCausalLM",
    "MiniMaxM3SparseForConditionalGeneration": "MiniMaxM3ForCausalLM",
    "Step3p7ForConditionalGeneration": "Step3p7FlashForCausalLM",
}
"""Wrappers of which the planner asks that their config names the language model."""


@dataclass(frozen=True, slots=True)
class ArchitectureNames:
    """One row. inner, ties: what a wrapper holds, and whether it ties embeddings, where its config says nothing."""

    architecture: str
    model_types: tuple[str, ...]
    is_wrapper: bool
    inner: Inner
    ties: bool


@cache
def architecture_names() -> tuple[ArchitectureNames, ...]:
    """Return every row of the table."""
    rows = json.loads(architectures_file().read_text(encoding="utf-8"))["architectures"]
    return tuple(_row(row) for row in rows)


def _row(row: Mapping[str, Any]) -> ArchitectureNames:
    name, versions = row["architecture"], row.get("text_model_of_version")
    inner: Inner = row.get("text_model") or _HOLD_WITHOUT_A_WORD.get(name)
    if versions:
        inner = {None: next(iter(versions.values())), **versions}
    return ArchitectureNames(
        name, tuple(row.get("model_types", ())), row["reader"] == _WRAPPER, inner, row.get("ties", False)
    )

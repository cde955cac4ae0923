"""Every architecture that vLLM has a class of, and what kvplan does with it.

``profiles/vllm-registry.json`` is vLLM's list of one release (``vllm/model_executor/models/registry.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from kvplan.catalog.registry import find_reader
from kvplan.paths import read_shipped

GENERATING: Final = ("text generation", "multimodal", "transformers backend")
"""The kinds that generate text, which kvplan means to size."""
_DRAFTER: Final = "drafter"


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """One architecture. why: what keeps kvplan from sizing it, or how it is sized; "" where it is sized as it is."""

    architecture: str
    kind: str
    is_sized: bool
    why: str


def registry_release() -> str:
    """Return the release of vLLM whose list ships."""
    return str(_document()["release"])


def registered_models() -> Iterator[RegisteredModel]:
    """Yield every architecture of the list, kind by kind, by name inside of one."""
    for kind, names in _document()["architectures"].items():
        for name in names:
            yield _registered(name, kind)


@cache
def _document() -> dict[str, dict[str, list[str]]]:
    return read_shipped("vllm-registry.json", dict)


def _registered(name: str, kind: str) -> RegisteredModel:
    is_known = find_reader(name) is not None
    if kind == _DRAFTER:
        why = "" if is_known else "drafts for another model: --speculative-config"
    elif kind not in GENERATING:
        why = "sized as the model that generates" if is_known else "gives vectors or scores and generates no text"
    else:
        why = "" if is_known else "no reader knows its layers and weights"
    return RegisteredModel(name, kind, is_known, why)

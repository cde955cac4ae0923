"""The architectures of config.json that are known, from ``profiles/architectures.json``: one row for each.

    {"architecture": "Qwen3MoeForCausalLM", "model_types": ["qwen3_moe"], "reader": "softmax.mixtures:read_mixture",
     "family": "Qwen3MoeForCausalLM", "native": true, "transformers": "all sequences in one forward pass",
     "gguf": ["qwen3moe"]}

A key that a row leaves out has the default of its field here. ``docs/how-to/add-a-model-family.md`` says what to write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Final, Literal, get_type_hints

from kvplan.catalog.typed_json import WRONG, Check, FactError, checker, type_text
from kvplan.paths import profiles_dir

TransformersWay = Literal[
    "all sequences in one forward pass", "one sequence after the other", "one sequence after the other, token by token"
]
_WRAPPER: Final = "wrappers.multimodal:read_multimodal"


@dataclass(frozen=True, slots=True)
class ServedByVllm:
    """Which releases of vLLM have a class of it. first, last: None where 0.2.0, or the newest one, has it.

    served: whether any release has one, or a backend for it. lora: what adapters correct: "layers", or
    the embedding and the head too ("embeddings": its class lists ``embedding_modules``); None where its class takes no
    adapters (SupportsLoRA), or nobody has read it. stages, ranks: False where its class refuses pipeline
    stages, or tensor parallelism, in so many words.
    """

    first: str | None = None
    last: str | None = None
    served: bool = True
    lora: Literal["embeddings", "layers"] | None = None
    stages: bool = True
    ranks: bool = True


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row.

    model_types: what a config without ``architectures`` calls it, inside of another config too; its class's own first.
    reader: module and function below ``kvplan/catalog/families``; family: the row of that module's ``FAMILIES`` that
    the function reads by. text_model: of a wrapper, the language model where its config does not name it;
    text_model_of_version: by the config's ``version``, the first one where it has none; ties: its class in transformers
    ties the embeddings where the config does not say. native: kvplan's engine computes it. transformers: how it runs in
    its class of transformers, None where it does not. gguf: what llama.cpp calls it (``general.architecture``).
    """

    architecture: str
    reader: str
    family: str | None = None
    model_types: tuple[str, ...] = ()
    text_model: str | None = None
    text_model_of_version: Mapping[str, str] = field(default_factory=dict)
    ties: bool = False
    native: bool = False
    transformers: TransformersWay | None = None
    gguf: tuple[str, ...] = ()
    vllm: ServedByVllm = ServedByVllm()

    @property
    def is_wrapper(self) -> bool:
        """Whether it is towers around a language model, which its text config describes."""
        return self.reader == _WRAPPER


@cache
def architectures() -> Mapping[str, Architecture]:
    """Return every row by its architecture. FactError for a table that is wrong."""
    path = profiles_dir() / "architectures.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    try:
        return rows_of(document["architectures"])
    except FactError as error:
        raise FactError(f"{path.name}: {error}") from error


def rows_of(written: list[Mapping[str, Any]]) -> dict[str, Architecture]:
    """Return the rows of a table as ``architectures`` reads it: sorted, and each name and type of one row alone."""
    rows = [_row(each) for each in written]
    names = [row.architecture for row in rows]
    if names != sorted(set(names)):
        wrong = next(name for name, right in zip(names, [*sorted(set(names)), ""], strict=False) if name != right)
        raise FactError(f"'{wrong}' stands twice, or not in the order of names.")
    by_name = dict(zip(names, rows, strict=True))
    _by("model_types", rows)
    _by("gguf", rows)
    for row in rows:
        for inner in (row.text_model, *row.text_model_of_version.values()):
            if inner is not None and (inner not in by_name or not row.is_wrapper):
                raise FactError(
                    f"'{row.architecture}' has the text model '{inner}', which has no row, or is no wrapper."
                )
    return by_name


def _row(written: Mapping[str, Any]) -> Architecture:
    name = written.get("architecture", "(a row without a name)")
    values = {key: value for key, value in written.items() if key != "vllm"}
    if "vllm" not in written:
        return Architecture(**_checked(Architecture, values, f"'{name}'"))
    served = ServedByVllm(**_checked(ServedByVllm, written["vllm"], f"'{name}' and vLLM"))
    return Architecture(**_checked(Architecture, values, f"'{name}'"), vllm=served)


@cache
def _checks(kind: type) -> dict[str, Check]:
    return {name: checker(hint) for name, hint in get_type_hints(kind).items()}


@cache
def _needed(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING)


def _checked(kind: type, written: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the values as the fields of ``kind`` have them."""
    checks = _checks(kind)
    values = {}
    for key, value in written.items():
        if key not in checks:
            raise FactError(f"{what}: no row has a key '{key}'.")
        values[key] = checks[key](value)
        if values[key] is WRONG:
            raise FactError(f"{what}: '{key}' is {value!r}, which is no {type_text(get_type_hints(kind)[key])}.")
    missing = [key for key in _needed(kind) if key not in values]
    if missing:
        raise FactError(f"{what} has no '{missing[0]}'.")
    return values


def _by(key: Literal["model_types", "gguf"], rows: list[Architecture]) -> dict[str, Architecture]:
    found: dict[str, Architecture] = {}
    for row in rows:
        for name in getattr(row, key):
            if name in found:
                raise FactError(f"'{name}' of {key} is both {found[name].architecture} and {row.architecture}.")
            found[name] = row
    return found


@cache
def _by_type() -> Mapping[str, Architecture]:
    return _by("model_types", list(architectures().values()))


@cache
def by_gguf_name() -> Mapping[str, Architecture]:
    """Return the row of each name that llama.cpp has for an architecture (``general.architecture``)."""
    return _by("gguf", list(architectures().values()))


def of_type(model_type: str) -> Architecture | None:
    """Return the architecture of a ``model_type``, for configs that name none; None where no row has it."""
    return _by_type().get(model_type)


@cache
def native_architectures() -> frozenset[str]:
    """Return those that kvplan's own engine computes; of the others it can measure the capacity."""
    return frozenset(name for name, row in architectures().items() if row.native)


@cache
def transformers_architectures() -> frozenset[str]:
    """Return those that kvplan's engine runs in their class of transformers (``--model-impl transformers``)."""
    return frozenset(name for name, row in architectures().items() if row.transformers is not None)

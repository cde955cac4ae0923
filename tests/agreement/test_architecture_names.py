"""The table of architectures says of the engine what the engine's own families say, name by name."""

from __future__ import annotations

from kvplan.catalog.architectures import architectures, native_architectures
from kvplan_engine.checkpoints.families import (
    FAMILIES,
    KNOWN_ARCHITECTURES,
    SUPPORTED_ARCHITECTURES,
    architecture_of,
    family_of,
)
from kvplan_engine.checkpoints.families.wrappers import TEXT_TYPES


def test_both_sides_know_the_same_architectures() -> None:
    assert set(architectures()) == set(KNOWN_ARCHITECTURES)


def test_what_the_table_calls_native_is_what_the_engine_computes() -> None:
    assert native_architectures() == set(SUPPORTED_ARCHITECTURES)


def test_a_type_is_of_the_same_family_to_both() -> None:
    """Of the types that several architectures have, each side may name another one that is read alike."""
    planned = {kind: name for name, row in architectures().items() for kind in row.model_types}
    described = {kind: architecture_of({"model_type": kind}) for family in FAMILIES for kind in family.model_types}
    assert planned.keys() == (described | TEXT_TYPES).keys()
    for kind, name in (described | TEXT_TYPES).items():
        assert family_of(planned[kind]) is family_of(name), kind


def test_a_file_of_llama_cpp_is_of_the_same_family_to_both() -> None:
    """The engine loads some of the files that the planner sizes, each as the architecture that the table names."""
    planned = {kind: name for name, row in architectures().items() for kind in row.gguf}
    for family in FAMILIES:
        if family.gguf is not None and not family.gguf.has_experts:
            assert planned[family.gguf.architecture] in family.architectures, family.gguf.architecture

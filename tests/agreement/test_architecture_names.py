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
from kvplan_engine.checkpoints.families.names import architecture_names


def test_both_sides_know_the_same_architectures() -> None:
    lacking = architectures().keys() - set(KNOWN_ARCHITECTURES)
    assert not lacking, f"{sorted(lacking)}: no Family names them below engine/kvplan_engine/checkpoints/families"
    unnamed = set(KNOWN_ARCHITECTURES) - architectures().keys()
    assert not unnamed, f"{sorted(unnamed)}: no row in profiles/architectures.json"


def test_what_the_table_calls_native_is_what_the_engine_computes() -> None:
    differing = native_architectures() ^ set(SUPPORTED_ARCHITECTURES)
    assert not differing, f'{sorted(differing)}: "native" of their rows, or names of their Family (TensorNames)'


def test_a_type_is_of_the_same_architecture_to_both() -> None:
    planned = {kind: name for name, row in architectures().items() for kind in row.model_types}
    assert {kind: architecture_of({"model_type": kind}) for kind in planned} == planned
    assert all(planned[kind] in family_of(planned[kind]).architectures for kind in planned)


def test_a_wrapper_holds_the_same_language_model_to_both() -> None:
    wrappers = {row.architecture: row.inner for row in architecture_names() if row.is_wrapper}
    assert wrappers.keys() == {name for name, row in architectures().items() if row.is_wrapper}
    for name, row in architectures().items():
        if row.text_model is not None:
            assert wrappers[name] == row.text_model
        if row.text_model_of_version:
            assert wrappers[name] == {None: next(iter(row.text_model_of_version.values())), **row.text_model_of_version}


def test_a_file_of_llama_cpp_is_of_the_same_family_to_both() -> None:
    """The engine loads some of the files that the planner sizes, each as the architecture that the table names."""
    planned = {kind: name for name, row in architectures().items() for kind in row.gguf}
    for family in FAMILIES:
        if family.gguf is not None and not family.gguf.has_experts:
            assert planned[family.gguf.architecture] in family.architectures, family.gguf.architecture

"""From what a user types to a ``ModelSpec``: a shipped profile, a directory, a config.json, a GGUF file, a hub id."""

from __future__ import annotations

from collections.abc import Mapping

from kvplan.catalog.spec import ModelSpec


def resolve_model(text: str, *, assumptions: Mapping[str, str] | None = None) -> ModelSpec:
    """The model that ``text`` names: short name, Hugging Face id, directory with config.json, config.json, or .gguf.

    ``assumptions`` are values for config keys that are missing (``--assume KEY=VALUE``). KvplanError where there is no
    such model or its config cannot be read; UnknownArchitectureError where its attention is not known.
    """
    raise NotImplementedError(text)

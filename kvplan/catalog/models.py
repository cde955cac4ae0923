"""From what a user types to a ``ModelSpec``: a shipped profile, a directory, a config.json, a GGUF file, a hub id."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvplan.catalog.reader import parse_config, read_config
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError, UsageError
from kvplan.paths import profiles_dir


def resolve_model(text: str, *, assumptions: Mapping[str, str] | None = None) -> ModelSpec:
    """The model that ``text`` names: short name, Hugging Face id, directory with config.json, config.json, or .gguf.

    ``assumptions`` are values for config keys that are missing (``--assume KEY=VALUE``). KvplanError where there is no
    such model or its config cannot be read; UnknownArchitectureError where its attention is not known.
    """
    name = text.strip()
    if not name:
        raise UsageError("The model's name is empty.", hint="try gpt2, llama-3.1-8b, or a path to a config.json")
    profile = find_profile(name)
    if profile is not None:
        return read_profile(profile, assumptions=assumptions)
    path = Path(name).expanduser()
    if path.exists() or name.endswith((".json", ".gguf")):
        return _read_path(path, assumptions)
    from kvplan.catalog.hub import fetch_model, is_repository_name

    if is_repository_name(name):
        return fetch_model(name, assumptions=assumptions)
    raise _no_such_model(name)


def _read_path(path: Path, assumptions: Mapping[str, str] | None) -> ModelSpec:
    if path.suffix.casefold() == ".gguf":
        from kvplan.catalog.gguf.models import read_gguf

        return read_gguf(path, assumptions=assumptions)
    if path.is_dir():
        path = path / "config.json"
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise KvplanError(f"{path} does not exist.", hint="pass a directory with a config.json") from error
    except (OSError, UnicodeDecodeError) as error:
        raise KvplanError(f"{path} cannot be read ({error}).", hint="pass a readable config.json") from error
    config = parse_config(content, where=str(path))
    model_id = path.parent.name if path.name == "config.json" else path.stem
    return read_config(config, model_id=model_id or str(path), source=str(path), assumptions=assumptions)


def _no_such_model(name: str) -> UsageError:
    from difflib import get_close_matches

    names = profile_names()
    close = get_close_matches(name.rsplit("/", 1)[-1].casefold(), names, n=3, cutoff=0.5)
    suggestion = f"did you mean {', '.join(close)}? " if close else ""
    return UsageError(
        f"Unknown model '{name}'.",
        hint=f"{suggestion}kvplan models lists the known ones; a directory or a config.json works too",
    )


def profile_names() -> list[str]:
    """The short names of all shipped profiles, sorted."""
    return sorted(path.stem for path in (profiles_dir() / "models").glob("*.json"))


def profiles() -> Iterator[dict[str, Any]]:
    """Every shipped profile: id, aliases, source, date, config, and its short ``name``."""
    for path in sorted((profiles_dir() / "models").glob("*.json")):
        yield _load_profile(path)


def _load_profile(path: Path) -> dict[str, Any]:
    profile: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    profile["name"] = path.stem
    return profile


def find_profile(name: str) -> dict[str, Any] | None:
    """The profile with this short name, id or alias: an exact match, ignoring case; None when there is none."""
    folded = name.casefold()
    if "/" not in folded:
        path = profiles_dir() / "models" / f"{folded}.json"
        if path.is_file():
            return _load_profile(path)
    for path in sorted((profiles_dir() / "models").glob("*.json")):
        # Most files are ruled out by their text: parsing all of them would take longer than everything else.
        if f'"{folded}"' not in path.read_text(encoding="utf-8").casefold():
            continue
        profile = _load_profile(path)
        if folded in (alias.casefold() for alias in (profile["id"], *profile["aliases"])):
            return profile
    return None


LOG_ONLY = "shape confirmed by what vLLM printed for this model"
"""How the source of a profile begins that rests on a start-up log: its sizes agree, its config.json was not at hand."""


def provenance_note(spec: ModelSpec) -> str | None:
    """What a user has to know about where ``spec`` comes from before trusting its numbers; None when it was read."""
    if not (spec.source or "").startswith(LOG_ONLY):
        return None
    return f"kvplan's profile of {spec.id}: {spec.source}. Give the model's own config.json to be sure."


def read_profile(profile: Mapping[str, Any], *, assumptions: Mapping[str, str] | None = None) -> ModelSpec:
    """The ``ModelSpec`` of a shipped profile."""
    return read_config(
        profile["config"],
        model_id=profile["id"],
        aliases=(profile["name"], *profile["aliases"]),
        source=profile["source"],
        assumptions=assumptions,
    )

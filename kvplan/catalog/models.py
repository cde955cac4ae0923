"""From what a user types to a ``ModelSpec``: a shipped profile, a directory, a config.json, a GGUF file, a hub id."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from kvplan.catalog.checkpoint.safetensors import read_files
from kvplan.catalog.quantization import beside
from kvplan.catalog.reader import parse_config, read_config
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.spec_of_checkpoint import stored_dtype, with_checkpoint
from kvplan.catalog.variants import checkpoint_of_ollama, find_variant, hyphenated
from kvplan.catalog.vllm_refusals import LORA_RANKS
from kvplan.errors import KvplanError, UsageError
from kvplan.files import LARGEST_CONFIG_BYTES, parse_json, read_text
from kvplan.paths import profiles_dir

ADAPTER_FILE: Final = "adapter_config.json"
"""What PEFT's ``save_pretrained`` writes beside the adapter's weights."""


def resolve_model(text: str, *, assumptions: Mapping[str, str] | None = None) -> ModelSpec:
    """The model that ``text`` names: short name, Hugging Face id, directory with config.json, config.json, or .gguf.

    A checkpoint whose config cannot be had is sized by its name where that is certain (kvplan.catalog.variants).
    ``assumptions`` are values for config keys that are missing (``--assume KEY=VALUE``). KvplanError where there is no
    such model or its config cannot be read; UnknownArchitectureError where its attention is not known.
    """
    name = _FILE_OF_REPOSITORY.sub(r"\1", _HUB_ADDRESS.sub(r"\1", text.strip()))
    if not name:
        raise UsageError("The model's name is empty.", hint="try gpt2, llama-3.1-8b, or a path to a config.json")
    profile = find_profile(name)
    if profile is not None:
        return read_profile(profile, asked=name, assumptions=assumptions)
    path = Path(name).expanduser()
    if os.path.exists(path) or name.endswith((".json", ".gguf")):
        return _read_path(path, assumptions)
    return _read_elsewhere(name, assumptions)


_HUB_ADDRESS = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface|hf)\.co/([\w.-]{1,96}/[\w.-]{1,96})(?:/(?:tree|blob|resolve)/.*|/)?$"
)
"""A repository's page, as browsers have it: what serves a model takes its id."""


_FILE_OF_REPOSITORY = re.compile(r"^(?:hf\.co/)?([\w.-]+/[\w.-]+-gguf):[\w.-]+$", re.IGNORECASE)
"""One file of a repository, as llama.cpp and Ollama write it: ``owner/model-GGUF:Q4_K_M``."""


def _read_elsewhere(name: str, assumptions: Mapping[str, str] | None) -> ModelSpec:
    """From the hub, or by what the name says."""
    from kvplan.catalog.hub import UnavailableError, fetch_model, is_repository_name

    checkpoint = _of_ollama(name)
    if checkpoint is not None:
        return _as_ollamas(name, resolve_model(checkpoint, assumptions=assumptions))
    missing: KvplanError | None = None
    if is_repository_name(name):
        try:
            return fetch_model(name, assumptions=assumptions)
        except UnavailableError as error:
            missing = error
    variant = find_variant(name, profiles())
    if variant is not None:
        source = f"{BY_NAME}: {variant.profile['source']}"
        spec = read_config(variant.config, model_id=name, source=source, assumptions=assumptions)
        return replace(spec, sized_as=variant.profile["id"], assumptions=(*variant.notes, *spec.assumptions))
    if missing is None:
        raise _no_such_model(name)
    hint = _pooling_hint(name) or did_you_mean(name)
    raise KvplanError(missing.message, hint=hint + (missing.hint or "")) from missing


def _of_ollama(name: str) -> str | None:
    """The model that Ollama calls ``name``, by a name that is known here."""
    if ":" not in name:
        return None
    known = list(profiles())

    return checkpoint_of_ollama(
        name,
        [each["name"] for each in known],
        lambda each: find_profile(each) is not None,
        lambda each: find_variant(each, known) is not None,
    )


def _as_ollamas(name: str, spec: ModelSpec) -> ModelSpec:
    """``spec`` with a note on what Ollama's file has otherwise."""
    facts = "" if spec.sized_as is None else f", with the facts of {spec.sized_as}"
    bits = "may be stored otherwise"
    if spec.quantization is None:
        bits = "is quantized to about 4 bits a weight where its tag says nothing"
    note = (
        f"{name}, Ollama's name, is sized as {spec.served_id}{facts}, weights as published: Ollama's file {bits}. Give "
        "its .gguf file for that size."
    )
    return replace(spec, source=f"{BY_NAME}: {spec.source}", assumptions=(note, *spec.assumptions))


def _read_path(path: Path, assumptions: Mapping[str, str] | None) -> ModelSpec:
    if path.is_dir() and not (path / "config.json").exists():
        path = _gguf_in(path) or path
    if path.suffix.casefold() == ".gguf":
        from kvplan.catalog.gguf.models import read_gguf

        return replace(read_gguf(path, assumptions=assumptions), served=_absolute(path))
    folder = path if path.is_dir() else None
    if folder is not None and not (folder / "config.json").exists() and (folder / ADAPTER_FILE).exists():
        raise adapter_error(folder)
    if folder is not None:
        path = folder / "config.json"
    content = read_text(path, LARGEST_CONFIG_BYTES, hint="pass a directory with a published config.json, or the file")
    config = parse_config(content, where=str(path))
    if path.name == "config.json":
        config = beside.with_file(config, path.with_name(beside.FILE_NAME))
    model_id = path.parent.name if path.name == "config.json" else path.stem
    files = None if folder is None else read_files(folder)
    dtype = None if files is None else stored_dtype(files)
    spec = read_config(
        config, model_id=model_id or str(path), source=str(path), assumptions=assumptions, stored_dtype=dtype
    )
    served = _absolute(path.parent if path.name == "config.json" else path)
    return replace(spec if files is None else with_checkpoint(spec, files), served=served)


def _absolute(path: Path) -> str:
    """Return a path as it was given, from the root on: a link is not followed, so that what it is called stays."""
    return os.path.abspath(path)


def _gguf_in(folder: Path) -> Path | None:
    """The GGUF file of a directory without a config.json; of a split one the first part. UsageError where several are.

    ``mmproj`` files hold the projector of a vision tower.
    """
    found = [path for path in sorted(folder.glob("*.gguf")) if not path.name.startswith("mmproj")]
    first = [path for path in found if "-of-" not in path.stem or "-00001-of-" in path.stem]
    if len(first) > 1:
        raise UsageError(f"{folder} holds {len(first)} GGUF models.", hint=f"name one of them: {first[0]}")
    return first[0] if first else (found[0] if found else None)


def did_you_mean(name: str) -> str:
    """Up to three names: those that go on where ``name`` ends, then those of its family that begin most like it.

    Of a family that none is of, those that differ by a misprint.
    """
    from difflib import SequenceMatcher, get_close_matches

    asked, names = name.rsplit("/", 1)[-1].casefold().replace(":", "-"), profile_names()
    spelt = hyphenated(asked)
    if any(_family(each, _VERSIONED) == _family(spelt, _VERSIONED) for each in names):
        asked = spelt
    longer = [each for each in names if asked and each.startswith(f"{asked}-")]
    family = [each for each in names if _family(each) == _family(asked)]

    def likeness(each: str) -> tuple[bool, int, float]:
        begun = next(
            (index for index, (one, two) in enumerate(zip(asked, each, strict=False)) if one != two), len(each)
        )
        return not asked.startswith(f"{each}-"), -begun, -SequenceMatcher(None, asked, each).ratio()

    alike = sorted(family, key=likeness) if family else get_close_matches(asked, names, n=3, cutoff=0.75)
    close = list(dict.fromkeys((*longer, *alike)))[:3]
    return f"did you mean {', '.join(close)}? " if close else ""


_VERSIONED = r"[a-z]*-?\d*"


def _family(name: str, pattern: str = "[a-z]*") -> str:
    """The letters that a name begins with: ``qwen`` of ``qwen3.5-9b``; with _VERSIONED ``qwen3``."""
    return re.match(pattern, name)[0]  # type: ignore[index]


def _pooling_hint(name: str) -> str:
    """What to know of a model that embeds or ranks texts, by its name; "" of any other."""
    if not _POOLING.search(name.rsplit("/", 1)[-1].casefold()):
        return ""
    return (
        "kvplan sizes models that generate text; one that embeds or ranks takes its weights and the activations of one "
        "step, and an encoder keeps no KV cache. "
    )


_POOLING = re.compile(r"embed|rerank|\b(?:bge|e5|gte|minilm|mpnet|colbert|splade)\b")
"""Names of models that vLLM serves with ``--runner pooling``."""


def _no_such_model(name: str) -> UsageError:
    if name.startswith(("/", "./", "../", "~")):
        return UsageError(f"There is no file or directory '{name}'.", hint="kvplan models lists models by name")
    hint = _pooling_hint(name) or did_you_mean(name)
    return UsageError(
        f"Unknown model '{name}'.",
        hint=f"{hint}kvplan models lists the known ones; a directory or a config.json works too",
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
        if os.path.isfile(path):  # False for a name that no file can have, too
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


BY_NAME = "by its name"
"""How the source of a model begins whose config could not be had; its first assumption says what was taken."""


def provenance_note(spec: ModelSpec) -> str | None:
    """What a user has to know about where ``spec`` comes from before trusting its numbers; None when it was read."""
    if (spec.source or "").startswith(BY_NAME):
        return spec.assumptions[0]
    if not (spec.source or "").startswith(LOG_ONLY):
        return None
    return f"kvplan's profile of {spec.id}: {spec.source}. Give the model's own config.json to be sure."


def pooling_note(spec: ModelSpec) -> str | None:
    """What is not sized of a model that embeds or ranks texts; None of one that generates them."""
    if not _POOLING.search(_short(spec.served_id)):
        return None
    return (
        f"{spec.served_id} embeds or ranks texts: its memory is sized as for generating text (vLLM leaves the head "
        "out, and keeps a KV pool for prompts), and no speed here is of what it does."
    )


def read_profile(
    profile: Mapping[str, Any], *, asked: str | None = None, assumptions: Mapping[str, str] | None = None
) -> ModelSpec:
    """The ``ModelSpec`` of a shipped profile, or of the checkpoint like it that was ``asked`` for by another name."""
    served = profile["id"] if asked is None else _asked_id(asked, profile)
    spec = read_config(
        profile["config"],
        model_id=profile["id"],
        aliases=(profile["name"], *profile["aliases"]),
        source=profile["source"],
        assumptions=assumptions,
    )
    is_other = served.casefold() != spec.id.casefold()
    return replace(spec, served=served, sized_as=spec.id if is_other else None)


def _asked_id(asked: str, profile: Mapping[str, Any]) -> str:
    """The hub id that ``asked`` names, as the hub spells it.

    A short name is the one whose last part it is (``llama-3.1-8b-instruct``), else the profile's own.
    """
    ids = [each for each in (profile["id"], *profile["aliases"]) if "/" in each]
    folded = asked.casefold()
    if folded == profile["name"]:
        return str(profile["id"])
    if "/" in folded:
        return asked if asked in ids else next(each for each in ids if each.casefold() == folded)
    return next((each for each in ids if _short(each) == folded), profile["id"])


def _short(hub_id: str) -> str:
    return hub_id.casefold().rsplit("/", 1)[-1].removeprefix("meta-").removesuffix("-hf")


def adapter_error(folder: Path) -> UsageError:
    """The base model with room for the adapter is what can be sized. UsageError for a file that cannot be read too."""
    text = read_text(folder / ADAPTER_FILE, LARGEST_CONFIG_BYTES, hint="pass the base model of the adapter")
    try:
        found = parse_json(text)
    except ValueError:
        found = None
    config: dict[str, Any] = found if isinstance(found, dict) else {}
    base, rank = config.get("base_model_name_or_path"), config.get("r")
    if not isinstance(base, str) or not base or type(rank) is not int or rank < 1:
        hint = "pass its base model, with --max-lora-rank"
        return UsageError(f"{folder} holds a LoRA adapter, not a model.", hint=hint)
    slot = next((each for each in LORA_RANKS if each >= rank), rank)
    return UsageError(
        f"{folder} holds a LoRA adapter of rank {rank}, not a model.",
        hint=f"size its base model with a slot for it: {base} --max-lora-rank {slot}",
    )

"""A ModelSpec with the checkpoint that lies beside its config: exact weights, and what the two do not agree on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvplan.catalog.checkpoint.naming import EncoderPlace, is_plain, kind_of, layers_named, place_of
from kvplan.catalog.checkpoint.safetensors import FLOAT_TYPES, StoredFiles
from kvplan.catalog.checkpoint.stored import StoredCheckpoint, StoredWeights, count_stored, merged
from kvplan.catalog.spec import ExtraModule, ModelSpec
from kvplan.errors import KvplanError
from kvplan.units import format_bytes

_NAMED_AT_MOST = 3
_LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "decoder_layers")


def stored_dtype(files: StoredFiles) -> str | None:
    """The dtype of the weights: the widest floating one; None where there is none."""
    return widest_dtype(tensor.type_name for tensor in files.tensors)


def widest_dtype(type_names: Iterable[str]) -> str | None:
    """The widest floating type among safetensors' names; None without any.

    As vLLM's ``_find_dtype`` (vllm/config/model.py) does for a config that names none.
    """
    found = set(type_names)
    return next((dtype for name, dtype in FLOAT_TYPES.items() if name in found), None)


def with_checkpoint(spec: ModelSpec, files: StoredFiles) -> ModelSpec:
    """``spec`` with its weights as ``files`` store them.

    Missing files are a note, and the weights stay those of the formulas. KvplanError where the config and the
    checkpoint are different models.
    """
    if files.missing:
        return _noted(spec, _missing_note(files))
    if not files.tensors:
        return spec
    stored = _sorted(spec, files)
    if stored is None:
        return _noted(
            spec, f"The tensors in {files.folder} have names that kvplan does not know: weights from the config."
        )
    found = replace(spec, checkpoint=stored, extras=tuple(_extras(spec, stored)))
    return _noted(found, _summary(files), *_differences(spec, stored))


def _noted(spec: ModelSpec, *notes: str) -> ModelSpec:
    return replace(spec, assumptions=(*spec.assumptions, *notes))


def _missing_note(files: StoredFiles) -> str:
    count = files.num_whole + len(files.missing)
    names = ", ".join(files.missing[:_NAMED_AT_MOST])
    more = f" and {len(files.missing) - _NAMED_AT_MOST} more" if len(files.missing) > _NAMED_AT_MOST else ""
    are = "is" if len(files.missing) == 1 else "are"
    return (
        f"{len(files.missing)} of the {count} weight files in {files.folder} {are} missing or cut off ({names}{more}): "
        "weights from the config."
    )


def _summary(files: StoredFiles) -> str:
    size = format_bytes(sum(tensor.num_bytes for tensor in files.tensors))
    where = "1 file" if files.num_whole == 1 else f"{files.num_whole} files"
    return f"Weights from the checkpoint: {len(files.tensors):,} tensors in {where}, {size} as stored."


def _sorted(spec: ModelSpec, files: StoredFiles) -> StoredCheckpoint | None:
    """The tensors by part; None where no name tells a layer."""
    tensors = [replace(each, name=each.name.replace("midlayer.", "layers.0.")) for each in files.tensors]  # EAGLE-3
    names = [tensor.name for tensor in tensors]
    encoder = _encoder(spec, names)
    num_layers = layers_named(names, encoder=encoder)
    if not num_layers:
        return None
    _check_layers(spec, num_layers, files.folder)
    layers: list[list[StoredWeights]] = [[] for _ in range(num_layers)]
    others: dict[str, list[StoredWeights]] = {"outside": [], "multi_token": [], "towers": [], "left out": []}
    for tensor in tensors:
        place = place_of(tensor.name, num_layers=num_layers, encoder=encoder, tied=spec.tie_word_embeddings)
        kind = kind_of(tensor.name, tensor.shape)
        weights = StoredWeights(tensor.type_name, tensor.num_elements, tensor.num_bytes, kind, is_plain(tensor))
        (others[place.part] if place.layer is None else layers[place.layer]).append(weights)
    return StoredCheckpoint(
        source=str(files.folder),
        num_files=files.num_whole,
        num_tensors=len(files.tensors),
        layers=tuple(merged(layer) for layer in layers),
        outside=merged(others["outside"]),
        multi_token=merged(others["multi_token"]),
        towers=merged(others["towers"]),
    )


def _encoder(spec: ModelSpec, names: list[str]) -> EncoderPlace:
    """Where the tensors of an ``encoder`` belong: it is one only where there is a ``decoder`` too."""
    if not any("decoder." in name for name in names):
        return "none"
    return "apart" if any(extra.kind in ("encoder", "audio") for extra in spec.extras) else "inside"


def _check_layers(spec: ModelSpec, num_layers: int, folder: Path) -> None:
    """KvplanError where the checkpoint has another number of layers than the config (some count in pairs)."""
    if num_layers in (spec.num_layers, _configured_layers(spec.raw_config)):
        return
    raise KvplanError(
        f"The config says {spec.num_layers} layers, but the checkpoint in {folder} has {num_layers}.",
        hint="take the config.json and the weights from the same repository",
    )


def _configured_layers(config: Mapping[str, Any]) -> int | None:
    for section in (config.get("text_config"), config.get("llm_config"), config):
        if isinstance(section, Mapping):
            for key in _LAYER_KEYS:
                if isinstance(section.get(key), int):
                    return int(section[key])
    return None


def _extras(spec: ModelSpec, stored: StoredCheckpoint) -> Iterable[ExtraModule]:
    """Yield the modules that the checkpoint has, counted where the config does not say enough."""
    towers = [extra for extra in spec.extras if extra.kind != "multi_token_prediction"]
    for extra in spec.extras:
        is_drafter = extra.kind == "multi_token_prediction"
        part = stored.multi_token if is_drafter else stored.towers
        if is_drafter and not part:
            continue
        if extra.num_parameters is None and part and (is_drafter or len(towers) == 1):
            yield replace(extra, num_parameters=count_stored(part))
        else:
            yield extra


def _differences(spec: ModelSpec, stored: StoredCheckpoint) -> Iterable[str]:
    """Sentences on what the checkpoint lacks or counts otherwise."""
    drafters = [extra for extra in spec.extras if extra.kind == "multi_token_prediction"]
    if drafters and not stored.multi_token:
        yield "The config names layers for multi-token prediction, which the checkpoint does not have."
    plain = all(each.is_float for each in stored.language_model)
    counted = count_stored(stored.language_model)
    if plain and counted != spec.num_parameters:
        yield f"The checkpoint holds {counted:,} parameters; the formulas give {spec.num_parameters:,}."

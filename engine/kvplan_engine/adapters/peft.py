"""One adapter from the directory that PEFT's ``save_pretrained`` wrote: adapter_config.json, adapter_model.safetensors.

PEFT names a tensor after the module that it corrects: "base_model.model." + the module's name in transformers +
".lora_A.weight". The modules' names are those of the checkpoint, so ``stored_parameters`` says which product, and
which rows of it, each belongs to.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kvplan_engine.adapters.sites import Site, sites_of
from kvplan_engine.checkpoints.families import names_of
from kvplan_engine.checkpoints.parameters import Source, stored_parameters
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_ANOTHER_MODEL = "is it an adapter of this model?"


@dataclass(frozen=True, slots=True)
class Correction:
    """Of one segment of a site: down [rank, inputs] (PEFT's A), up [outputs, rank] (its B, times the scale)."""

    down: torch.Tensor
    up: torch.Tensor


@dataclass(frozen=True)
class Adapter:
    """corrections: by the site's name and the number of the segment. digest: of the files. rank: the largest."""

    digest: bytes
    rank: int
    corrections: Mapping[tuple[str, int], Correction] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a module's correction goes: some segments of a site, and how its rows are arranged there."""

    site: Site
    segments: tuple[int, ...]
    source: Source

    @property
    def sizes(self) -> list[int]:
        """Outputs of each of the segments."""
        return [self.site.segments[segment] for segment in self.segments]


def read_adapter(path: str | Path, model: ModelDescription, max_rank: int) -> Adapter:
    """The adapter in directory ``path``, for ``model``. EngineError where it cannot be used: nothing is loaded then."""
    folder = Path(path)
    config = _read_config(folder)
    _refuse_unknown(config, folder)
    tensors, digest = _read_tensors(folder)
    targets = _targets_of(model)
    corrections: dict[tuple[str, int], Correction] = {}
    rank = 0
    for module, sides in _by_module(tensors, folder).items():
        target = targets.get(module)
        if target is None:
            raise EngineError(f"the adapter in {folder} corrects '{module}', which has no slot.", hint=_ANOTHER_MODEL)
        pair = _checked_pair(module, sides, target, folder)
        rank = max(rank, pair.down.shape[0])
        if rank > max_rank:
            raise EngineError(
                f"the adapter in {folder} has rank {rank}, and max_lora_rank is {max_rank}.",
                hint=f"set max_lora_rank={rank}",
            )
        scaled = Correction(pair.down, _arranged(pair.up, target) * _scale_of(module, config, pair.down.shape[0]))
        corrections.update(_per_segment(scaled, target))
    if not corrections:
        raise EngineError(f"the adapter in {folder} corrects nothing.", hint=_ANOTHER_MODEL)
    return Adapter(digest, rank, corrections)


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / _CONFIG).read_text())
    except OSError:
        raise EngineError(f"{folder} holds no {_CONFIG}.", hint="give a directory that PEFT saved") from None
    except ValueError:
        raise EngineError(f"{folder / _CONFIG} is not JSON.", hint="save the adapter again") from None
    if not isinstance(config, dict) or str(config.get("peft_type", "LORA")).upper() != "LORA":
        raise EngineError(f"the adapter in {folder} is no LoRA.", hint="the engine runs adapters of peft_type LORA")
    return config


def _refuse_unknown(config: Mapping[str, Any], folder: Path) -> None:
    """What PEFT can do beyond A and B."""
    unknown = {
        "use_dora": "DoRA's magnitudes",
        "modules_to_save": "modules that it replaces",
        "target_parameters": "corrections of single parameters",
        "alora_invocation_tokens": "tokens that switch it on",
        "use_qalora": "QALoRA's pooled inputs",
    }
    lacking = next((text for key, text in unknown.items() if config.get(key)), None)
    if lacking is None and config.get("bias", "none") != "none":
        lacking = "biases of its own"
    if lacking is not None:
        raise EngineError(f"the adapter in {folder} has {lacking}, which the engine does not run.")


def _read_tensors(folder: Path) -> tuple[dict[str, torch.Tensor], bytes]:
    """The tensors, and a digest of both files."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    file = folder / _WEIGHTS
    try:
        raw = file.read_bytes()
        tensors = load(raw)
    except OSError:
        raise EngineError(
            f"{folder} holds no {_WEIGHTS}.", hint="save the adapter with safe_serialization=True"
        ) from None
    except SafetensorError as error:
        raise EngineError(f"{file} is damaged: {error}.", hint="copy it again") from None
    digest = hashlib.blake2b((folder / _CONFIG).read_bytes(), digest_size=16)
    digest.update(raw)
    return tensors, digest.digest()


def _by_module(tensors: Mapping[str, torch.Tensor], folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """A and B of each module; EngineError for a tensor that is neither."""
    modules: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise EngineError(
                f"the adapter in {folder} has a tensor '{name}', which the engine does not run.",
                hint="it runs corrections of attention's and the MLP's projections",
            )
        modules.setdefault(match["module"].removeprefix(_PREFIX), {})[match["side"]] = tensor
    return modules


def _targets_of(model: ModelDescription) -> dict[str, _Target]:
    """The products that can be corrected, by their names in a checkpoint, with each prefix that may stand before."""
    names, prefixes = names_of(model)
    assert names is not None, "refuse_unknown_parts comes first"
    sites = {f"{site.name}.weight": site for site in sites_of(model)}
    targets: dict[str, _Target] = {}
    for stored in stored_parameters(model, names):
        site = sites.get(stored.name)
        if site is None:
            continue
        first = 0
        for source in stored.sources:
            number = len(site.segments) if len(stored.sources) == 1 else 1
            segments = tuple(range(first, first + number))
            target = _Target(site, segments, source)
            for prefix in prefixes:
                targets[prefix + source.name.removesuffix(".weight")] = target
            first += number
    return targets


def _checked_pair(module: str, sides: Mapping[str, torch.Tensor], target: _Target, folder: Path) -> Correction:
    """A and B in float32; EngineError where one is missing, misshapen or not finite."""
    down, up = sides.get("A"), sides.get("B")
    where = f"the adapter in {folder}"
    if down is None or up is None:
        raise EngineError(f"{where} lacks one half of its correction of '{module}'.", hint="save it again")
    wanted = (target.site.num_inputs, sum(target.sizes))
    if down.ndim != 2 or up.ndim != 2 or down.shape[0] != up.shape[1] or (down.shape[1], up.shape[0]) != wanted:
        raise EngineError(
            f"{where} corrects '{module}' with A {list(down.shape)} and B {list(up.shape)}, where this model's has "
            f"{wanted[0]:,} inputs and {wanted[1]:,} outputs.",
            hint=_ANOTHER_MODEL,
        )
    if not (torch.isfinite(down).all() and torch.isfinite(up).all()):
        raise EngineError(f"{where} has values for '{module}' that are not finite.", hint="train it again")
    return Correction(down.float(), up.float())


def _arranged(up: torch.Tensor, target: _Target) -> torch.Tensor:
    """B with its rows as the weight's lie in memory."""
    return up if target.source.arrange is None else target.source.arrange(up)


def _scale_of(module: str, config: Mapping[str, Any], rank: int) -> float:
    """alpha / rank, or alpha / sqrt(rank) (Kalajdzievski, 2023, rsLoRA)."""
    alpha = float(_by_pattern(config.get("alpha_pattern"), module, config.get("lora_alpha", rank)))
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _by_pattern(patterns: Mapping[str, float] | None, module: str, default: float) -> float:
    """The value of the first pattern that a whole ending of ``module`` matches, as PEFT finds it."""
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def _per_segment(correction: Correction, target: _Target) -> Iterator[tuple[tuple[str, int], Correction]]:
    """One correction for each stacked product: products that are one in the checkpoint have the same A."""
    for segment, up in zip(target.segments, correction.up.split(target.sizes), strict=True):
        yield (target.site.name, segment), Correction(correction.down, up)

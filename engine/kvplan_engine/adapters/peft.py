"""One adapter from the directory that PEFT's ``save_pretrained`` wrote: adapter_config.json, adapter_model.safetensors.

PEFT names a tensor after the module that it corrects: "base_model.model." + the module's name in transformers +
".lora_A.weight". The modules' names are those of the checkpoint, so ``stored_parameters`` says which product, and
which rows of it, each belongs to.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
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
from kvplan_engine.errors import EngineError, shown
from kvplan_engine.files import NotRegular, open_regular

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_TENSOR = re.compile(r"(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_ANOTHER_MODEL = "is it an adapter of this model?"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_MOST_CONFIG_BYTES = 4 << 20
_MOST_ALPHA = 1e30
_LONGEST_PATTERN = 500
_MOST_REPETITIONS = 3
_REPETITION = re.compile(r"[*+?{]")
_REPEATED_GROUP = re.compile(r"\)[*+?{]")


@dataclass(frozen=True, slots=True)
class Correction:
    """Correction of a segment of a site: down [rank, inputs] (PEFT's A), up [outputs, rank] (B, times the scale)."""

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
    raw_config = _read(folder, _CONFIG, hint="give a directory that PEFT saved")
    config = _parse_config(raw_config, folder)
    _refuse_unknown(config, folder)
    raw_tensors = _read(folder, _WEIGHTS, hint="save the adapter with safe_serialization=True")
    tensors = _parse_tensors(raw_tensors, folder)
    targets = _targets_of(model)
    corrections: dict[tuple[str, int], Correction] = {}
    rank = 0
    for module, sides in _by_module(tensors, folder).items():
        target = targets.get(module)
        if target is None:
            raise EngineError(
                f"the adapter in {folder} corrects {shown(module)}, which has no slot.", hint=_ANOTHER_MODEL
            )
        pair = _checked_pair(module, sides, target, folder)
        rank = max(rank, pair.down.shape[0])
        if rank > max_rank:
            raise EngineError(
                f"the adapter in {folder} has rank {rank}, and max_lora_rank is {max_rank}.",
                hint=f"set max_lora_rank={rank}",
            )
        scaled = Correction(
            pair.down, _arranged(pair.up, target) * _scale_of(module, config, pair.down.shape[0], folder)
        )
        _refuse_beyond_numbers(scaled, module, folder)
        corrections.update(_per_segment(scaled, target))
    if not corrections:
        raise EngineError(f"the adapter in {folder} corrects nothing.", hint=_ANOTHER_MODEL)
    return Adapter(_digest_of(raw_config, raw_tensors), rank, corrections)


def _read(folder: Path, name: str, *, hint: str) -> bytes:
    try:
        with open_regular(folder / name) as file:
            size = os.fstat(file.fileno()).st_size
            if name == _CONFIG and size > _MOST_CONFIG_BYTES:
                raise EngineError(f"{folder / name} has {size:,} bytes.", hint=hint)
            return file.read()
    except NotRegular:
        raise EngineError(f"{folder / name} is not a regular file.", hint=hint) from None
    except MemoryError:
        raise EngineError(f"{folder / name} does not fit this machine's memory.", hint=hint) from None
    except (OSError, ValueError):  # a path with a zero byte is a ValueError
        raise EngineError(f"{folder} holds no {name}.", hint=hint) from None


def _parse_config(raw: bytes, folder: Path) -> dict[str, Any]:
    try:
        config = json.loads(raw.decode())
    except (ValueError, RecursionError):
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


def _parse_tensors(raw: bytes, folder: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(raw)
    except SafetensorError as error:
        raise EngineError(f"{folder / _WEIGHTS} is damaged: {error}.", hint="copy it again") from None
    except (KeyError, ValueError, TypeError, RuntimeError, OverflowError):  # types that torch has no tensors of
        raise EngineError(
            f"{folder / _WEIGHTS} has tensors that cannot be read.", hint="save it in float32, float16 or bfloat16"
        ) from None


def _digest_of(*contents: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for content in contents:
        digest.update(content)
    return digest.digest()


def _by_module(tensors: Mapping[str, torch.Tensor], folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """A and B of each module; EngineError for a tensor that is neither."""
    modules: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise EngineError(
                f"the adapter in {folder} has a tensor {shown(name)}, which the engine does not run.",
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
    """A and B in float32; EngineError where one is missing, misshapen or no numbers."""
    down, up = sides.get("A"), sides.get("B")
    where = f"the adapter in {folder}"
    if down is None or up is None:
        raise EngineError(f"{where} lacks one half of its correction of {shown(module)}.", hint="save it again")
    wanted = (target.site.num_inputs, sum(target.sizes))
    is_pair = down.ndim == up.ndim == 2 and 0 < down.shape[0] == up.shape[1]
    if not is_pair or (down.shape[1], up.shape[0]) != wanted:
        raise EngineError(
            f"{where} corrects {shown(module)} with A {list(down.shape)} and B {list(up.shape)}, where this model's "
            f"has {wanted[0]:,} inputs and {wanted[1]:,} outputs.",
            hint=_ANOTHER_MODEL,
        )
    for tensor in (down, up):
        if tensor.dtype not in _DTYPES:
            raise EngineError(
                f"{where} has values for {shown(module)} of type {str(tensor.dtype).removeprefix('torch.')}.",
                hint="save it in float32, float16 or bfloat16",
            )
    return Correction(down.float(), up.float())


def _refuse_beyond_numbers(correction: Correction, module: str, folder: Path) -> None:
    if not (torch.isfinite(correction.down).all() and torch.isfinite(correction.up).all()):
        raise EngineError(
            f"the adapter in {folder} has values for {shown(module)} that are not finite.", hint="train it again"
        )


def _arranged(up: torch.Tensor, target: _Target) -> torch.Tensor:
    """B with its rows as the weight's lie in memory."""
    return up if target.source.arrange is None else target.source.arrange(up)


def _scale_of(module: str, config: Mapping[str, Any], rank: int, folder: Path) -> float:
    """alpha / rank, or alpha / sqrt(rank) (Kalajdzievski, 2023, rsLoRA)."""
    alpha = config.get("lora_alpha", rank)
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise EngineError(f"alpha_pattern of the adapter in {folder} is no object.", hint="save the adapter again")
    alpha = next((value for pattern, value in patterns.items() if _matches(pattern, module, folder)), alpha)
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not abs(alpha) <= _MOST_ALPHA:
        raise EngineError(f"lora_alpha of the adapter in {folder} is no number.", hint="save the adapter again")
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _matches(pattern: str, module: str, folder: Path) -> bool:
    """Whether a whole ending of ``module`` matches, as PEFT finds it.

    A pattern whose repetitions are nested, or many, may take for ever to say no, and is refused.
    """
    is_slow = len(_REPETITION.findall(pattern)) > _MOST_REPETITIONS or _REPEATED_GROUP.search(pattern)
    try:
        compiled = None if is_slow or len(pattern) > _LONGEST_PATTERN else re.compile(rf"(.*\.)?({pattern})$")
    except (re.error, RecursionError, OverflowError):
        compiled = None
    if compiled is None:
        raise EngineError(
            f"alpha_pattern of the adapter in {folder} has {shown(pattern)}, which the engine does not run.",
            hint="name modules by their endings, such as 'layers.0.self_attn.q_proj'",
        )
    return compiled.match(module) is not None


def _per_segment(correction: Correction, target: _Target) -> Iterator[tuple[tuple[str, int], Correction]]:
    """One correction for each stacked product: products that are one in the checkpoint have the same A."""
    for segment, up in zip(target.segments, correction.up.split(target.sizes), strict=True):
        yield (target.site.name, segment), Correction(correction.down, up)

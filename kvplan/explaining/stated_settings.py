"""The settings of a start: what the engine prints of them, then what a pasted command says, then what follows.

An engine's own line says what was made of a command, so it counts before one. Where two places disagree, a note says
so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from kvplan.catalog.releases.facts import release_number
from kvplan.errors import UsageError
from kvplan.explaining import patterns
from kvplan.pasted.text import pasted_settings
from kvplan.settings import KNOBS, ServingSettings

_SINGLE: Final = (
    "gpu_memory_utilization",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
)
"""Settings that an engine prints with one value, however often it prints them."""
_SGLANG_ADJUSTS: Final = ("max_num_batched_tokens", "max_num_seqs")
"""Those that SGLang lowers by itself, and prints as asked and as used."""
_LARGEST_GRAPH: Final = 512
"""Graphs are not made for larger steps on most GPUs, whatever ``max_num_seqs`` is."""


@dataclass(frozen=True, slots=True)
class StatedSettings:
    """What a text says of a deployment; None and the defaults of ServingSettings: it does not."""

    settings: ServingSettings
    model: str | None
    version: str | None
    notes: tuple[str, ...]


def stated_settings(text: str, *, is_sglang: bool) -> StatedSettings:
    """Read every setting that ``text`` states in any form."""
    notes: list[str] = []
    text = patterns.COMMENTED_OUT.sub("", text)
    printed = _printed(text, notes, is_sglang=is_sglang)
    pasted = _pasted(text)
    for name, values in pasted.items():
        is_single = name in _SINGLE and not (is_sglang and name in _SGLANG_ADJUSTS)
        option = "" if name == "model" else KNOBS[name].option
        if name not in printed or printed[name] == "auto":
            printed[name] = values[0]
            if is_single and len(values) > 1:
                said = " and ".join(map(_written, values[:3]))
                notes.append(
                    f"Pasted commands have {option} {said}: {_written(values[0])}, which stands first, counts."
                )
        elif is_single and printed[name] not in values:
            engine = _written(printed[name])
            notes.append(
                f"A pasted command has {option} {_written(values[0])}; the engine printed {engine}, which counts."
            )
    model = printed.pop("model", None)
    _derive(text, printed, notes)
    # A format that kvplan does not know is kept: the prediction says so.
    usable = {name: value for name, value in printed.items() if isinstance(value, str) or _is_in_range(name, value)}
    return StatedSettings(ServingSettings(**usable), model, _version(text, is_sglang=is_sglang), tuple(notes))


def _pasted(text: str) -> dict[str, list[Any]]:
    """What commands say, each value once."""
    found: dict[str, list[Any]] = {}
    for name, value in pasted_settings(text):
        if value not in found.setdefault(name, []):
            found[name].append(value)
    return found


def _printed(text: str, notes: list[str], *, is_sglang: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    before, begins, after = text.partition(patterns.SERVER_BEGINS)
    if begins:
        text = patterns.DEFAULT_STEP.sub("", before) + begins + after
    without_drafter = patterns.DRAFTER.sub("", text)
    for name, pattern in patterns.NAMES:
        values = [value for value in re.findall(pattern, without_drafter) if value not in patterns.NOTHING]
        if values:
            found.setdefault(name, values[0])
    numbers = {name: _numbers(text, name) for name in dict.fromkeys(name for name, _ in patterns.NUMBER_SETTINGS)}
    fitted = re.search(patterns.FITTED_LENGTH, text)
    if fitted:
        numbers["max_model_len"] = [int(fitted.group(1).replace(",", ""))]
    shares = [float(share) for pattern in patterns.UTILIZATION for share in re.findall(pattern, text)]
    said_of: dict[str, list[Any]] = {**numbers, "gpu_memory_utilization": shares}
    for name, values in said_of.items():
        different = list(dict.fromkeys(values))
        if different:
            found[name] = different[0]
        if len(different) > 1 and name in _SINGLE and not (is_sglang and name in _SGLANG_ADJUSTS):
            said = " and ".join(map(_written, different[:3]))
            notes.append(
                f"The log has {KNOBS[name].option} {said}: {_written(different[0])}, which stands first, counts."
            )
    return found | _switches(text)


def _numbers(text: str, name: str) -> list[int]:
    """The values that are in range, by the patterns' order."""
    found: list[int] = []
    for each, pattern in patterns.NUMBER_SETTINGS:
        if each == name:
            found += [int(number.replace(",", "")) for number in re.findall(pattern, text)]
    return [number for number in found if _is_in_range(name, number)]


def _switches(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in patterns.SWITCHES:
        values = re.findall(rf"""\b{name}['"]?[=:]\s*(True|False)""", text)
        if values:
            # The engine's own line comes last and says what was made of the arguments.
            found[name] = values[-1] == "True"
    if any(phrase in text for phrase in patterns.EAGER):
        found["enforce_eager"] = True
    if any(phrase in text for phrase in patterns.TEXT_ONLY):
        found["language_model_only"] = True
    if patterns.FOUND_COMPILED.search(text) and not patterns.COMPILED.search(text):
        found["warm_start"] = True
    if patterns.EXPANDABLE.search(text):
        found["expandable_segments"] = True
    if patterns.NO_GRAPH_ESTIMATE in text and "profiling is disabled" in text:
        found["estimate_cudagraphs"] = False
    found["has_flashinfer"] = "Using FlashInfer for top-p & top-k sampling" in text
    return found


def _derive(text: str, found: dict[str, Any], notes: list[str]) -> None:
    """Fill in batch settings that follow from what was compiled and captured.

    vLLM compiles for steps of up to ``max_num_batched_tokens``, and captures graphs of up to twice the tokens of a
    decode step (vllm/config/vllm.py: _set_compile_ranges, _set_cudagraph_sizes), which is rounded down to a size.
    """
    ranks = [int(rank) for pair in patterns.WORKER_RANK.findall(text) for rank in pair if rank]
    if any(ranks) and "tensor_parallel_size" not in found:
        found["tensor_parallel_size"] = max(ranks) + 1
        notes.append(f"--tensor-parallel-size {max(ranks) + 1} is read off the highest rank of a worker.")
    ends = re.search(patterns.COMPILED_UP_TO, text)
    if ends and "max_num_batched_tokens" not in found:
        found["max_num_batched_tokens"] = int(ends.group(1))
        notes.append(f"--max-num-batched-tokens {ends.group(1)} is read off the sizes that vLLM compiled for.")
    captured = re.search(patterns.CAPTURED_UP_TO, text)
    if captured is None or patterns.ASKED_GRAPHS.search(text) or found.get("max_num_seqs") is not None:
        return
    largest, step = int(captured.group(1)), 1 + found.get("num_speculative_tokens", 0)
    rows = largest // (2 * step)
    if rows and largest < min(_LARGEST_GRAPH, found.get("max_num_batched_tokens", _LARGEST_GRAPH)):
        found["max_num_seqs"] = rows
        notes.append(f"--max-num-seqs {rows} is read off the largest CUDA graph, which is for {largest} tokens.")


def _version(text: str, *, is_sglang: bool) -> str | None:
    """The first version of the engine that is printed, by how sure the place is."""
    for pattern in patterns.SGLANG_VERSIONS if is_sglang else patterns.VLLM_VERSIONS:
        for version in re.findall(pattern, text):
            if release_number(version) is not None:
                return str(version).rstrip(".+")
    return None


def overridden(stated: ServingSettings, given: ServingSettings) -> tuple[ServingSettings, tuple[str, ...]]:
    """``stated`` with what was ``given`` as options, and a note for each that says otherwise."""
    changed = named_settings(given)
    notes = [
        f"{KNOBS[name].option} {_written(value)} is taken as given; the log has {_written(getattr(stated, name))}."
        for name, value in changed.items()
        if name in named_settings(stated) and getattr(stated, name) != value
    ]
    return ServingSettings(**(named_settings(stated) | changed)), tuple(notes)


def named_settings(settings: ServingSettings) -> dict[str, Any]:
    """Return the settings that are not left open."""
    values = {name: getattr(settings, name) for name in KNOBS}
    return {name: value for name, value in values.items() if value != KNOBS[name].default}


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_in_range(name: str, value: Any) -> bool:
    try:
        KNOBS[name].check(value)
    except UsageError:
        return False
    return True


def first_match(text: str, wanted: Iterable[str]) -> str | None:
    """The first group of the first pattern that is found."""
    for pattern in wanted:
        match = re.search(pattern, text)
        if match:
            return match.group(1).strip()
    return None

"""Settings and loads as people read them: which of them a line or a table shows, and in which words.

A line always names the settings of ``ALWAYS_SHOWN``, and beside them whatever a sweep varies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from kvplan.runs.columns import Row
from kvplan.runs.rows import cell
from kvplan.runs.trials import LOAD_NAMES, NEEDED_SETTINGS, SETTING_NAMES, Trial, TrialSettings
from kvplan.units import format_bytes, plural


@dataclass(frozen=True, slots=True)
class _Writing:
    """head: of a table's column. cell: a value by itself, as a format or a function. phrase: the cell within a line."""

    head: str
    cell: str | Callable[[Any], str] = "{}"
    phrase: str = "{}"


_WRITINGS: Final[Mapping[str, _Writing]] = {
    "gpu_memory_utilization": _Writing("utilization", "{:g}", "utilization {}"),
    "max_num_seqs": _Writing("sequences"),
    "block_size": _Writing("block", phrase="block {}"),
    "max_model_len": _Writing("context", "{:,}", "context {}"),
    "max_num_batched_tokens": _Writing("batched tokens", "{:,}", "{} tokens per step"),
    "kv_cache_memory_bytes": _Writing("KV memory", lambda value: format_bytes(value, digits=3), "KV memory {}"),
    "dtype": _Writing("dtype"),
    "kv_cache_dtype": _Writing("KV cache", phrase="KV cache {}"),
    "quantization": _Writing("weights", phrase="weights {}"),
    "group_size": _Writing("group", phrase="groups of {}"),
    "max_loras": _Writing("adapters", phrase="{} adapters"),
    "max_lora_rank": _Writing("rank", phrase="rank {}"),
    "tensor_parallel_size": _Writing("tp", phrase="tp {}"),
    "pipeline_parallel_size": _Writing("pp", phrase="pp {}"),
    "enable_expert_parallel": _Writing("experts", lambda value: "whole" if value else "sliced", "{} experts"),
    "num_speculative_tokens": _Writing("drafts", phrase="drafts {}"),
    "max_concurrency": _Writing("in flight", "{:g}", "{} in flight"),
    "request_rate": _Writing("requests/s", phrase="{} requests/s"),
}
_WORDS: Final = ("dtype", "kv_cache_dtype", "quantization")
ALWAYS_SHOWN: Final = SETTING_NAMES[:4]


def shown_settings(varied: Iterable[str]) -> tuple[str, ...]:
    """The settings and loads to show where those in ``varied`` differ, in the order of their declaration."""
    names = set(varied)
    return tuple(name for name in (*SETTING_NAMES, *LOAD_NAMES) if name in ALWAYS_SHOWN or name in names)


def varied_settings(settings: Iterable[TrialSettings]) -> tuple[str, ...]:
    """The names of the settings that have more than one value."""
    listed = list(settings)
    return tuple(name for name in SETTING_NAMES if len({getattr(each, name) for each in listed}) > 1)


def shown_in(rows: Iterable[Row]) -> tuple[str, ...]:
    """What to show of rows: the settings and loads that differ among them, and those that are always shown."""
    listed = list(rows)
    return shown_settings(
        name for name in (*SETTING_NAMES, *LOAD_NAMES) if len({cell(row, name) for row in listed}) > 1
    )


def row_text(row: Row, shown: Sequence[str] = ALWAYS_SHOWN) -> str:
    """Settings and load of a row in one line."""
    return as_phrase(cast(Mapping[str, Any], row), shown)


def values_of(trial: Trial) -> dict[str, Any]:
    """Settings and load of a trial by name; None for a load that is the sweep's."""
    return setting_values(trial.settings) | {name: getattr(trial.load, name) for name in LOAD_NAMES}


def setting_values(settings: TrialSettings) -> dict[str, Any]:
    """The settings by name; None for one that is not known."""
    known = settings.known_values()
    return {name: getattr(settings, name) if name in known or name not in NEEDED_SETTINGS else None
            for name in SETTING_NAMES}  # fmt: skip


def settings_text(settings: TrialSettings, shown: Sequence[str] = ALWAYS_SHOWN) -> str:
    """``utilization 0.9, 16 sequences, block 16, context 1,024``, and whatever else ``shown`` names."""
    return as_phrase(setting_values(settings), shown)


def as_phrase(values: Mapping[str, Any], shown: Sequence[str] = ALWAYS_SHOWN) -> str:
    """The values of ``shown`` in one line, without those that are missing."""
    return ", ".join(_phrase(name, values[name]) for name in shown if values.get(name) is not None)


def heads(shown: Sequence[str]) -> list[str]:
    """The heads of a table's columns for ``shown``."""
    return [_WRITINGS[name].head if name in _WRITINGS else name for name in shown]


def cells(values: Mapping[str, Any], shown: Sequence[str]) -> list[str]:
    """The cells below ``heads``; '' for a missing value."""
    return ["" if values.get(name) is None else _cell(name, values[name]) for name in shown]


def text_columns(shown: Sequence[str], first: int = 0) -> tuple[int, ...]:
    """Which of the columns, counted from ``first``, hold words."""
    return tuple(first + place for place, name in enumerate(shown) if name in _WORDS)


def _phrase(name: str, value: Any) -> str:
    if name == "max_num_seqs":
        return plural(value, "sequence")
    writing = _WRITINGS.get(name, _Writing(name, phrase=f"{name} {{}}"))
    return writing.phrase.format(_cell(name, value))


def _cell(name: str, value: Any) -> str:
    writing = _WRITINGS.get(name, _Writing(name))
    if callable(writing.cell):
        return writing.cell(value)
    return str(value) if isinstance(value, str) else writing.cell.format(value)

"""The page of the check, and what was not as predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engines.failures import FAILURES
from engines.killed import Killed
from kvplan.units import format_bytes

Rows = Mapping[str, Sequence[Mapping[str, Any]]]
_HEAD = "| model | KV memory | sequences | block | context | predicted | ended | KV tokens | predicted | start |"


def unexpected(rows: Rows, failures: Mapping[str, Mapping[str, Any]], continued: Killed | None) -> list[str]:
    """One sentence for each row and failure that was predicted or recognised wrongly, and for a killed sweep."""
    found = []
    for part, listed in rows.items():
        for row in listed:
            where = f"{part}, {_setting(row)}"
            if row["status"] != row["predicted_status"]:
                found.append(f"{where}: {row['status']} instead of {row['predicted_status']}")
            if row["kv_cache_tokens"] not in (None, row["kv_cache_tokens_predicted"]):
                found.append(f"{where}: {row['kv_cache_tokens']} tokens, not {row['kv_cache_tokens_predicted']}")
    for name, row in failures.items():
        if row["status"] != FAILURES[name][0]:
            found.append(f"{name}: {row['status']} instead of {FAILURES[name][0]} ({row['error']})")
    if continued is not None and not continued.is_good:
        found.append(f"killed sweep: {continued.sentence()}")
    return found


def page(
    rows: Rows,
    failures: Mapping[str, Mapping[str, Any]],
    continued: Killed | None,
    problems: Sequence[str],
    lacking: Sequence[str],
) -> str:
    """docs/engines.md. lacking: parts that were not run to the end."""
    everything = [row for listed in rows.values() for row in listed]
    versions = sorted({str(row["engine_version"]) for row in everything if row["engine_version"]})
    device = everything[0]["device_name"] if everything else ""
    told = [row for row in everything if row["kv_cache_tokens"] is not None]
    exact = sum(row["kv_cache_tokens"] == row["kv_cache_tokens_predicted"] for row in told)
    starts = sum(not row["reused_server"] for row in everything) + len(failures)
    right = sum(row["status"] == row["predicted_status"] for row in everything)
    lines = [
        "# Other engines, swept",
        "",
        "`make check-engines` writes this page. It sweeps vLLM's build for CPUs as a user would, with dummy weights",
        "and `--engine-arg enforce-eager`, provokes failures, and compares each row with what was predicted before.",
        "",
        f"vLLM {', '.join(versions)} on an {device}. The KV tokens that vLLM printed equal the prediction in",
        f"{exact} of {len(told)} starts; {right} of {len(everything)} outcomes are the predicted ones.",
        f"{starts} starts left no process behind.",
        "",
        _HEAD,
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *map(_line, everything),
        "",
        "## Failures, provoked",
        "",
        "| what | taken for | what the row says |",
        "| --- | --- | --- |",
        *(
            f"| {name.removeprefix('failure: ')} | {row['status']} | {_cell(row['error'])} |"
            for name, row in failures.items()
        ),
        "",
        *(["## Killed and continued", "", continued.sentence(), ""] if continued is not None else []),
        *(["## Not run to the end", "", *(f"* {name}" for name in lacking), ""] if lacking else []),
        "## Not as predicted",
        "",
        *([f"* {problem}" for problem in problems] or ["Nothing."]),
        "",
    ]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    tokens, start = row["kv_cache_tokens"], row["start_seconds"]
    cells = [
        row["model_id"],
        format_bytes(row["kv_cache_memory_bytes"]),
        row["max_num_seqs"],
        row["block_size"],
        f"{row['max_model_len']:,}",
        row["predicted_status"],
        row["status"],
        "" if tokens is None else f"{tokens:,}",
        f"{row['kv_cache_tokens_predicted']:,}",
        "" if start is None else f"{start:.0f} s",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def _setting(row: Mapping[str, Any]) -> str:
    seats = f"{row['max_num_seqs']} seats, block {row['block_size']}, context {row['max_model_len']}"
    return f"{row['kv_cache_memory_bytes']} bytes, {seats}"


def _cell(text: object) -> str:
    return str(text or "").replace("|", "\\|").replace("\n", " ")

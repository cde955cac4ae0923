"""A plan, a start-up log and the rows of a sweep as the page shows them, cell by cell."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from kvplan.api import Explanation, Plan
from kvplan.errors import KvplanError, UsageError
from kvplan.explaining.explanation import difference_gib
from kvplan.settings import KNOBS
from kvplan.units import format_bytes, format_gib
from kvplan.web.wording import number, span, usd_span

PAIRS: Final = (
    ("KV cache tokens", "kv_cache_tokens_predicted", "kv_cache_tokens", ""),
    ("blocks", "num_blocks_predicted", "num_blocks_total", ""),
    ("weights", "weights_bytes_predicted", "weights_bytes", "bytes"),
    ("sequences at once", "pred_max_concurrency", "meas_max_concurrency", ""),
    ("output", "pred_output_throughput", "output_throughput", "tokens/s"),
    ("TTFT, median", "pred_median_ttft_ms", "median_ttft_ms", "ms"),
    ("TPOT, median", "pred_median_tpot_ms", "median_tpot_ms", "ms"),
)
"""Name, the column that was predicted, the one that was measured, the unit of both."""
_MOST_ROWS: Final = 500
_ABOUT: Final = ("model_id", "device_name", "block_size", "max_num_seqs", "max_num_batched_tokens", "status")
_MARKS: Final = ("trial_id", "run_id")
_NOBODYS = ("has_flashinfer", "estimate_cudagraphs")
"""Read off a log, and set by no option."""
MOST_SHOWN: Final = 12
_FIRST_PASS: Final = 2 / 3
"""Of the loads that a search may play: the second pass may play half as many as the first."""

Document = dict[str, Any]


def plan_view(found: Plan, document: Document) -> dict[str, Any]:
    """The best first. ``problem``: why there are none, and ``fix`` what would help."""
    fix = document["fix"]
    return {
        "title": found.model,
        "rows": [_row(each) for each in document["deployments"][:MOST_SHOWN]],
        "more": max(len(document["deployments"]) - MOST_SHOWN, 0),
        "alternatives": [_row(each) | {"caveats": each["caveats"]} for each in document["alternatives"]],
        "left_out": [{"gpu": gpu, "sentence": text} for gpu, text in document["left_out"].items()],
        "problem": found.problem,
        "fix": None if fix is None else {"sentence": fix["change"], "row": _row(fix["deployment"])},
        "tried": f"{document['num_tried']:,}",
        "assumptions": document["assumptions"],
    }


def share_of_passes(show: Callable[[float], None]) -> Callable[[int, int], None]:
    """Return what ``make_plan`` tells its progress: ``show`` is called with the share of both passes that is done.

    What the first pass leaves unplayed counts as done when the second begins to count anew.
    """
    last, is_second = 0, False

    def progress(num_played: int, most: int) -> None:
        nonlocal last, is_second
        is_second = is_second or num_played <= last
        last = num_played
        share = min(num_played / most, 1)
        show(_FIRST_PASS + (1 - _FIRST_PASS) * share if is_second else _FIRST_PASS * share)

    return progress


def _row(each: Document) -> dict[str, Any]:
    performance, cost, memory = each["performance"], each["cost"], each["memory"]
    count = each["num_gpus"]
    return {
        "name": each["gpu"] if count == 1 else f"{count} x {each['gpu']}",
        "layout": _layout(each),
        "formats": f"{each['quantization']}, KV {each['kv_cache_dtype']}",
        "average": number(each["capacity"]["average_sequences"]),
        "worst": number(each["capacity"]["worst_case_sequences"]),
        "pool": format_bytes(memory["kv_pool_bytes"]),
        "ttft": span(performance["ttft_ms"], "ms"),
        "tpot": span(performance["tpot_ms"], "ms"),
        "throughput": span(performance["output_throughput"], "tokens/s"),
        "hourly": "-" if cost is None else f"${cost['usd_per_hour']:,.2f}",
        "million": "-" if cost is None else usd_span(cost["usd_per_million_output_tokens"]),
        "price": None if cost is None else f"{cost['price_source']}, {cost['price_date']}",
        "slo": performance["slo"],
        "sure": f"{min(100 * performance['confidence'], 99):.0f}\u00a0%",
        "limit": each["limit"],
        "origin": performance["origin"],
        "profile": performance["profile"],
        "commands": each["commands"],
    }


def _layout(each: Document) -> str:
    sizes = {
        "TP": each["tensor_parallel_size"],
        "PP": each["pipeline_parallel_size"],
        "DP": each["data_parallel_size"],
    }
    words = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    words += ["EP"] if each["enable_expert_parallel"] else []
    words += [f"{each['replicas']} replicas"] if each["replicas"] > 1 else []
    return ", ".join(words)


def log_view(found: Explanation, document: dict[str, Any]) -> dict[str, Any]:
    """What was started, where its memory went, and what to change."""
    return {
        "title": f"{document['engine']} {document['version'] or '(version not printed)'}",
        "model": document["model"] or "a model without a name",
        "gpu": document["gpu"],
        "failure": document["failure"],
        "settings": [
            {"name": KNOBS[name].option, "value": str(value)}
            for name, value in document["settings"].items()
            if name not in _NOBODYS
        ],
        "memory": [
            {
                "part": part.name,
                "logged": _gib(part.logged_bytes),
                "predicted": _gib(part.predicted_bytes),
                "difference": "-" if (apart := difference_gib(part)) is None else f"{apart:+.2f}",
            }
            for part in found.answer.parts
            if (part.logged_bytes, part.predicted_bytes) != (None, None)
        ],
        "counts": [
            {"part": name, "logged": _count(document[key]["logged"]), "predicted": _predicted(document[key])}
            for name, key in (("KV cache tokens", "kv_cache_tokens"), ("blocks", "num_blocks"))
            if set(document[key].values()) != {None}
        ],
        "changes": [
            {
                "change": each["change"],
                "gained": None if each["gained_tokens"] is None else f"+{each['gained_tokens']:,} tokens",
            }
            for each in document["changes"]
        ],
        "notes": document["notes"],
    }


def _predicted(count: dict[str, int | None]) -> str:
    low, high = count.get("predicted_low"), count.get("predicted_high")
    return _count(count["predicted"]) + (f" ({_count(low)} to {_count(high)})" if high else "")


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{format_gib(size)} GiB"


def _count(found: int | None) -> str:
    return "-" if found is None else f"{found:,}"


def rows_view(text: str) -> dict[str, Any]:
    """Return the pairs of every row that has any. UsageError for what is no such file."""
    try:
        found = list(csv.DictReader(io.StringIO(text)))
    except csv.Error as error:
        raise UsageError("This is no CSV file.", hint="drop the results.csv of a kvplan sweep") from error
    known = {column for _, predicted, measured, _ in PAIRS for column in (predicted, measured)}
    if not found or not known & set(found[0]):
        raise UsageError("This has no rows of a kvplan sweep.", hint="drop the results.csv of a sweep's directory")
    rows = [row for row in map(_compared_row, found) if row["pairs"]]
    if not rows:
        raise KvplanError("No row has both a prediction and a measurement.", hint="did the sweep's trials end well?")
    return {"rows": rows[:_MOST_ROWS], "num_rows": len(found), "num_shown": min(len(rows), _MOST_ROWS)}


def _compared_row(cells: Mapping[str, Any]) -> dict[str, Any]:
    about = [_about(name, cells[name]) for name in _ABOUT if cells.get(name)]
    pairs = [pair for each in PAIRS if (pair := _pair(cells, *each)) is not None]
    return {"name": next((cells[name] for name in _MARKS if cells.get(name)), ""), "about": about, "pairs": pairs}


def _about(name: str, cell: Any) -> str:
    """A setting with its name, what is no number by itself."""
    return f"{name} {cell}" if str(cell).isdigit() else str(cell)


def _pair(cells: Mapping[str, Any], name: str, predicted: str, measured: str, unit: str) -> dict[str, str] | None:
    mine, seen = _read(cells.get(predicted)), _read(cells.get(measured))
    if mine is None or seen is None:
        return None
    apart = "" if not seen else f"{100 * (mine / seen - 1):+.1f} %"
    return {"name": name, "predicted": _shown(mine, unit), "measured": _shown(seen, unit), "difference": apart}


def _shown(value: float, unit: str) -> str:
    if unit == "bytes":
        return format_bytes(value)
    return f"{value:,.0f}" if not unit else f"{number(value)} {unit}"


def _read(cell: Any) -> float | None:
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None

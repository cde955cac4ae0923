"""A made-up run directory that has everything a report can show; its summary is made by the sweep's own code.

Beyond the small sample: a search within a service level with repetitions, a failure that breaks monotony, a noisy run
with its rerun, shared prefixes. No figure in it was measured. Run as a script with a directory to look at it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from sample_rows import _manifest, sample_records

from kvplan.runs.answers.summary import summarize
from kvplan.runs.directory import TRIAL_SCHEMA

LEVEL = {"ttft": 1500.0, "tpot": 60.0}
_BASE = {"gpu_memory_utilization": 0.9, "max_num_seqs": 16, "block_size": 16, "max_model_len": 1024}


def _copy(record: dict, **changes: object) -> dict:
    return {"schema": TRIAL_SCHEMA, "row": record["row"] | changes, "series": record["series"]}


def _search(best: dict, number: int) -> list[dict]:
    """Concurrency 1 to 16 with a boundary at 9, where two of three runs keep the level."""
    keeping = {1: (1,), 8: (1, 1), 9: (1, 0, 1), 10: (0, 1, 0), 12: (0, 0), 16: (0, 0)}
    records = []
    for concurrency, runs in keeping.items():
        for run, kept in enumerate(runs, start=1):
            number += 1
            share = 100.0 if kept else max(20.0, 130.0 - 5 * concurrency)
            records.append(
                _copy(
                    best,
                    trial_id=f"slo{concurrency:02d}{run}",
                    trial_number=number,
                    design_parts="slo",
                    run_number=run,
                    max_concurrency=concurrency,
                    slo_pass=bool(kept),
                    goodput_pct=share,
                    **_BASE,
                    request_goodput=0.45 * min(concurrency, 12) ** 0.8 * share / 100,
                    output_throughput=25.0 * concurrency**0.7,
                    median_tpot_ms=24.0 + 3.5 * concurrency,
                    p99_ttft_ms=300.0 + 130 * concurrency,
                    p99_tpot_ms=30 + 3.2 * concurrency,
                )
            )
    return records


def full_records() -> list[dict]:
    records = sample_records()
    for record in records:
        if record["row"]["completed"]:
            record["row"] |= {
                "slo_pass": record["row"]["max_num_seqs"] <= 8,
                "goodput_pct": 80.0,
                "request_goodput": 3.0,
            }
    hole = next(r for r in records if r["row"]["gpu_memory_utilization"] == 0.3 and r["row"]["max_model_len"] == 512)
    hole["row"] |= {
        "status": "oom_runtime",
        "error": "The allocator could not get 96.00 MiB.",
        "output_throughput": None,
    }
    hole["series"] = None
    best = next(r for r in records if r["row"]["max_num_seqs"] == 32 and r["row"]["block_size"] == 16)
    noisy = next(r for r in records if r["row"]["max_num_seqs"] == 8 and r["row"]["block_size"] == 16)
    again = _copy(noisy, trial_id="again", run_number=101, rerun_of=1, trial_number=len(records) + 1,
                  rerun_reason="other processes used 64 % of the CPU")  # fmt: skip
    noisy["row"] |= {"other_cpu_pct": 64.0, "output_throughput": 60.0}
    return [*records, again, *_search(best, len(records) + 1)]


def write_full_directory(directory: Path) -> Path:
    """The made-up sweep in ``directory``; returns it."""
    return write_records(directory, full_records(), slo_ms=LEVEL)


def write_records(directory: Path, records: Sequence[dict], **options: object) -> Path:
    """trials.jsonl, manifest.json and summary.json of ``records`` in ``directory``; returns it."""
    directory.mkdir(parents=True, exist_ok=True)
    manifest = _manifest() | {"trials": [], "workload": {"text": "16 requests"}, "options": {"boundary": []} | options}
    summary = summarize(manifest, [record["row"] for record in records])
    (directory / "trials.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    (directory / "summary.json").write_text(json.dumps(summary, indent=2), encoding="utf-8")
    return directory


if __name__ == "__main__":
    print(write_full_directory(Path(sys.argv[1])))

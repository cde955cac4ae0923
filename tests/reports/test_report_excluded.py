"""A run that its rerun replaces does not colour any figure of its setting."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "sweeps" / "cases"))
from sample_rows import _manifest, sample_records

from kvplan.reports.outcome_map import outcome_map
from kvplan.runs.answers.summary import summarize
from kvplan.runs.storage.reader import load_run


def test_a_cell_of_the_outcome_map_leaves_replaced_runs_out_of_its_throughput(tmp_path: Path) -> None:
    """A cell showed the median of a run on a busy machine and of its rerun: a speed that nothing had."""
    records = [record for record in sample_records() if record["row"]["design_parts"] == "memory"]
    noisy = next(r for r in records if r["row"]["gpu_memory_utilization"] == 0.9 and r["row"]["max_model_len"] == 512)
    again = {
        **noisy,
        "row": noisy["row"] | {"trial_id": "again", "run_number": 101, "rerun_of": 1, "output_throughput": 170.0},
    }
    noisy["row"] |= {"other_cpu_pct": 64.0, "output_throughput": 34.0}
    manifest = _manifest() | {"trials": [], "workload": {"text": "16 requests"}, "options": {"boundary": []}}
    summary = summarize(manifest, [record["row"] for record in (*records, again)])
    lines = "".join(json.dumps(record) + "\n" for record in (*records, again))
    (tmp_path / "trials.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (tmp_path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    plane = outcome_map(load_run(tmp_path))
    assert plane is not None
    cells = plane.cells.set_index(["gpu_memory_utilization", "max_model_len"])
    assert cells.loc[(0.9, 512), "throughput"] == 170.0
    assert cells.loc[(0.9, 512), "num_trials"] == 2

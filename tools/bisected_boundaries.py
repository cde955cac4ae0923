"""Bisected boundaries against an exhaustive grid at the same resolution, on the CPU device with 1 GiB.

    python tools/bisected_boundaries.py [MODEL] [DIRECTORY]

Runs ``max_model_len`` over utilizations (and the other way round) twice, as a grid and as a search, with kvplan's own
engine and two short requests a trial; prints the boundaries of both and how many trials each took. Ends with 1 where
they differ or the search took more than a quarter of the grid's trials.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from kvplan.runs.statuses import MEASURED_STATUSES
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import SweepPlan, make_plan
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.session import run_new_sweep

REQUESTS: dict[str, Any] = {"num_prompts": 2, "input_len": "8..16", "output_len": "2..4", "rerun": False}


def plan_for(model: str, axes: dict[str, str], boundary: tuple[str, ...] = ()) -> SweepPlan:
    return make_plan(
        SweepOptions(model=model, device="cpu", device_memory="1GiB", axes=axes, boundary=boundary, **REQUESTS)
    )


def axes_around_the_boundary(model: str, num_contexts: int, num_utilizations: int) -> dict[str, str]:
    """Contexts up to the model's positions; utilizations whose pools hold from less than one block to all of them."""
    plan = plan_for(model, {"max_num_seqs": "4"})
    predictor, settings = plan.predictor, plan.trials[0].settings
    longest = predictor.spec.max_position_embeddings or 1024
    step = longest // num_contexts
    memory = predictor.memory(settings.with_changes(max_model_len=longest, gpu_memory_utilization=0.9))
    fixed = memory.weight_bytes + memory.activation_bytes + memory.overhead_bytes
    pool = longest / settings.block_size * memory.block_bytes
    device = predictor.device.memory_bytes
    places = [1.3 * (index - 0.5) / num_utilizations for index in range(num_utilizations)]
    shares = [(fixed + pool * place) / device for place in places]
    return {
        "max_num_seqs": "4",
        "max_model_len": ",".join(str(step * (index + 1)) for index in range(num_contexts)),
        "gpu_memory_utilization": ",".join(f"{share:.7f}" for share in shares),
    }


def frontier(rows: list[dict[str, Any]], axis: str, along: str, *, best: Any) -> dict[Any, Any]:
    """Value of ``along`` -> the outermost value of ``axis`` that was served; None where none was."""
    found: dict[Any, Any] = {row[along]: None for row in rows}
    for row in rows:
        if row["status"] in MEASURED_STATUSES:
            known = found[row[along]]
            found[row[along]] = row[axis] if known is None else best(known, row[axis])
    return found


def compare(model: str, axes: dict[str, str], axis: str, along: str, best: Any, directory: Path) -> bool:
    """Grid and search over the same values; True where they agree and the search took a quarter of the trials."""
    grid, found = (
        run_new_sweep(plan_for(model, axes, boundary), directory / name, SilentProgress(), command="tool").rows
        for name, boundary in ((f"grid-{axis}", ()), (f"search-{axis}", (axis,)))
    )
    exhaustive, bisected = (frontier(rows, axis, along, best=best) for rows in (grid, found))
    num_run = sum(row["status"] != "skipped_oom_dominated" for row in found)
    num_audits = sum("audit" in row["planes"] for row in found)
    print(f"\nboundary of {axis} at every {along}")
    for value in sorted(exhaustive):
        print(f"  {value:>10}  grid {exhaustive[value]!s:>10}  search {bisected.get(value)!s:>10}")
    share = num_run / len(grid)
    print(f"  {num_run} trials ({num_audits} of them audits) instead of {len(grid)}: {share:.0%}")
    return exhaustive == bisected and share <= 0.25


def main() -> int:
    model = sys.argv[1] if len(sys.argv) > 1 else "gpt2"
    directory = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp(prefix="kvplan-boundaries-"))
    utilization, context = "gpu_memory_utilization", "max_model_len"
    contexts = compare(model, axes_around_the_boundary(model, 16, 8), context, utilization, max, directory)
    shares = compare(model, axes_around_the_boundary(model, 4, 32), utilization, context, min, directory)
    print("\nequal, in a quarter of the trials or less" if contexts and shares else "\nNOT as it should be")
    return 0 if contexts and shares else 1


if __name__ == "__main__":
    sys.exit(main())

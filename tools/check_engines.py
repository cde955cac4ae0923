"""Sweeps real engines and checks what the planner said of them: pools to the token, outcomes, failures, clean ends.

    python tools/check_engines.py --vllm-python PYTHON --out docs/engines.md          # all of it, about half an hour
    python tools/check_engines.py --vllm-python PYTHON --only smollm2 --work DIR      # one part; DIR keeps the runs

Parts that DIR already holds are continued, not run again. ``make check-engines`` installs vLLM for CPUs beside.
Exit code 1 where a pool or an outcome was predicted wrongly, a failure was not recognised, or a process is left.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from engines.failures import FAILURES, provoke, provoked
from engines.killed import NAME as KILLED
from engines.killed import kill_and_continue, killed
from engines.report import page, unexpected
from engines.runs import Part, is_finished, run_part
from sweeping import rows_of

LOAD = {"num_prompts": 12, "input_len": "48..96", "output_len": "16..24"}


PARTS = (
    Part("gpt2: pool and context", "gpt2", {"kv_cache_memory_bytes": "4MiB,20MiB,300MB", "max_model_len": "256,1024"}),
    Part("gpt2: seats and blocks", "gpt2", {"max_num_seqs": "2,8", "block_size": "32,128"}),
    Part(
        "smollm2: pool and context",
        "smollm2-135m",
        {"kv_cache_memory_bytes": "4MiB,20MiB,300MB", "max_model_len": "256,2048"},
    ),
    Part("smollm2: seats and blocks", "smollm2-135m", {"max_num_seqs": "2,8", "block_size": "32,128"}),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write the page, and say what was not as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", required=True, help="the Python that has vLLM for CPUs")
    parser.add_argument("--work", type=Path, default=Path("check-engines"), help="where run directories lie")
    parser.add_argument("--only", default="", help="parts and failures whose name contains this")
    parser.add_argument("--no-run", action="store_true", help="only write the page of what DIR holds")
    parser.add_argument("--out", type=Path, help="a page to write")
    options = parser.parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    parts = [part for part in PARTS if options.only in part.name]
    wanted = [name for name in FAILURES if options.only in name]
    if not options.no_run:
        for part in parts:
            run_part(part, LOAD, options.vllm_python, options.work)
        for name in wanted:
            provoke(name, options.vllm_python, options.work)
        if options.only in KILLED:
            kill_and_continue(options.vllm_python, options.work)
    rows = {part.name: rows_of(options.work / part.folder) for part in parts}
    failures = {name: row for name in wanted if (row := provoked(name, options.work)) is not None}
    lacking = [part.name for part in parts if not is_finished(options.work / part.folder)]
    lacking += [name for name in wanted if name not in failures]
    continued = killed(options.work) if options.only in KILLED else None
    problems = unexpected(rows, failures, continued)
    if options.out is not None:
        options.out.write_text(page(rows, failures, continued, problems, lacking), encoding="utf-8")
    print("\n".join(problems) or "everything as predicted")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

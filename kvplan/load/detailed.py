"""bench.json: a run as the result file of ``vllm bench serve --save-result --save-detailed`` has it.

Checked against vllm/benchmarks/serve.py of 0.32.0: a list with one entry per request for each key, in order of sending.
A failed request has a TTFT of 0, no gaps and its error. Texts of answers are not kept, so there are no
``generated_texts``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kvplan.load.client.record import RequestRecord
from kvplan.load.observed.figures import MeasuredRun, counting, tells_gaps, token_times
from kvplan.load.summary import BENCH_KEYS
from kvplan.runs.request_lines import gaps_between, rounded
from kvplan.runs.storage.files import write_whole

BENCH: Final = "bench.json"


def write_bench(directory: Path, figures: Mapping[str, Any], run: MeasuredRun) -> Path:
    """Write the file and return its path. figures: of the run, under the names of the columns."""
    # ``p99.9_ttft_ms``, as vLLM writes it.
    document = {name.replace("p99_9_", "p99.9_"): figures.get(name) for name in BENCH_KEYS} | bench_lists(run)
    path = directory / BENCH
    write_whole(path, json.dumps(document, allow_nan=False) + "\n")
    return path


def bench_lists(run: MeasuredRun) -> dict[str, list[Any]]:
    """Return what each measured request showed. Times count from its sending, start_times from the run's start."""
    measured = run.measured
    start = run.start
    has_gaps = tells_gaps(counting([record for record in measured if record.is_served]))
    times = [token_times(record) if record.is_served else [] for record in measured]
    return {
        "input_lens": [record.num_prompt_tokens or record.num_prompt_tokens_asked for record in measured],
        "output_lens": [record.num_output_tokens or 0 if record.is_served else 0 for record in measured],
        "ttfts": [_since(record, tokens[:1]) for record, tokens in zip(measured, times, strict=True)],
        "itls": [gaps_between(tokens) if has_gaps else [] for tokens in times],
        "latencies": [_since(record, tokens[-1:]) for record, tokens in zip(measured, times, strict=True)],
        "start_times": [rounded(record.started - start) for record in measured],
        "errors": ["" if record.is_served else record.error or "no token came" for record in measured],
    }


def _since(record: RequestRecord, moment: list[float]) -> float | None:
    """Seconds from sending to the moment, 0 without one."""
    return rounded(moment[0] - record.started) if moment else 0.0

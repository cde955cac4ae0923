"""``vllm bench forward --output-json`` (vLLM 0.33): the time of exact batches as CUDA graphs.

A list with an entry for each case: ``requests`` (``query_len`` new tokens, ``kv_len`` tokens after the step,
``num_draft_tokens``) and ``median_us``, the median over replays of the slowest rank (vllm/benchmarks/forward/main.py
and capture.py, 0.33.0 read). Only the model's forward lies between the two events: no output head, no sampling, no
host. The file names neither model nor GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.calibrate.results.outcome import BatchResult, Results
from kvplan.calibrate.results.readers.fields import Fields
from kvplan.calibrate.results.served import ServedDeployment


def is_vllm_forward(documents: Sequence[Mapping[str, Any]]) -> bool:
    return all({"case", "requests", "median_us"} <= set(each) for each in documents)


def read_vllm_forward(documents: Sequence[Mapping[str, Any]], source: str) -> Results:
    """Every case but those with a drafter, whose forward is timed along."""
    found = Results()
    for document in documents:
        fields = Fields(document, f"case {document['case']} of {source}")
        requests = fields.objects("requests")
        if any(each.optional_number("num_draft_tokens") for each in requests):
            found.excluded["a drafter ran along"] += 1
        elif not requests or fields.number("median_us") <= 0:
            found.excluded["nothing was timed"] += 1
        else:
            sizes = tuple((each.count("query_len"), each.count("kv_len")) for each in requests)
            ranks = fields.values.get("ranks")
            tp = len(ranks) if isinstance(ranks, list) and len(ranks) > 1 else None
            served = ServedDeployment(engine="vllm", tensor_parallel_size=tp)
            found.batches.append(BatchResult(fields.source, served, sizes, fields.number("median_us") / 1e6))
    return found

"""Rows that other rows of their own source contradict: some thing that no row states held them back.

A row is hindered where the same source measured the same deployment under the same load and got more than 35 % more
throughput than the two GPUs can differ by: more than 1.35 times the largest ratio of their data sheets (operations in
any format, memory bandwidth, link between GPUs), and at least 1. Of loads that both pools hold, so that memory is no
reason. For requests sent one after another it is the time of a token that counts, as throughput is often not stated.
The rule looks at no prediction; no row is left out of a score by it, it only says what scores would be without.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.errors import KvplanError
from published_speeds.predictions import start_of
from published_speeds.rows import PublishedRow
from published_speeds.settings import deployed

MARGIN: Final = 1.35
_SET_UP: Final = (
    "engine", "engine_version", "model", "gpu_count", "tp", "pp", "dp", "ep", "dtype", "quantization", "kv_cache_dtype",
    "input_len", "output_len", "num_prompts", "max_concurrency", "request_rate", "max_num_seqs",
    "max_num_batched_tokens",
)  # fmt: skip
"""Columns in which two rows agree that differ in their GPU alone."""


def hindered_rows(rows: Iterable[PublishedRow]) -> dict[str, str]:
    """Ids, each with the id of the row that contradicts it."""
    alike: defaultdict[tuple[str, ...], list[PublishedRow]] = defaultdict(list)
    for row in rows:
        if _speed(row) is not None:
            alike[(row.source, *(row.text[column] for column in _SET_UP))].append(row)
    found: dict[str, str] = {}
    for group in alike.values():
        found |= _contradicted(group)
    return found


def _speed(row: PublishedRow) -> float | None:
    """Tokens per second: of one request where these are sent one after another, else of all."""
    if row.max_concurrency == 1:
        return None if row.measured.tpot_ms is None else 1000 / row.measured.tpot_ms
    return row.measured.output_throughput


def _contradicted(group: Sequence[PublishedRow]) -> dict[str, str]:
    found: dict[str, str] = {}
    for slow in group:
        for fast in group:
            ratio = (_speed(fast) or 0) / (_speed(slow) or 1)
            if ratio > MARGIN and _is_contradiction(slow, fast, ratio):
                found[slow.id] = fast.id
    return found


def _is_contradiction(slow: PublishedRow, fast: PublishedRow, ratio: float) -> bool:
    try:
        ours, theirs = deployed(slow), deployed(fast)
        pools = [start_of(each).kv_cache_tokens * each.replicas for each in (ours, theirs)]
    except KvplanError:
        return False
    at_once = slow.max_concurrency or slow.num_prompts or 0
    needed = at_once * (slow.input_tokens + slow.output_tokens)
    return min(pools) >= needed and ratio > MARGIN * _most_apart(ours.choice.gpu, theirs.choice.gpu, slow.num_gpus)


def _most_apart(slow: GpuProfile, fast: GpuProfile, num_gpus: int) -> float:
    """How many times as fast the data sheets make ``fast`` at most."""
    ratios = [1.0, fast.memory_bandwidth_bytes_per_second / slow.memory_bandwidth_bytes_per_second]
    ratios += [fast.flops(dtype) / slow.flops(dtype) for dtype in ("bfloat16", "float16", "fp8", "fp4", "int8")]
    links = [gpu.link_bytes_per_second(num_gpus) for gpu in (slow, fast)]
    if num_gpus > 1 and links[0] and links[1]:
        ratios.append(links[1] / links[0])
    return max(ratios)

"""Rows that were held back by something that no row states, found by other rows of their own source.

No rule looks at a prediction; no row is left out of a score by one, it only says what scores would be without, in
either direction. A row is hindered where

* the same source measured the same deployment under the same load and got more than 35 % more throughput than the two
  GPUs can differ by: more than 1.35 times the largest ratio of their data sheets (operations in any format, memory
  bandwidth, link between GPUs), and at least 1. Of loads that both pools hold, so that memory is no reason. For
  requests sent one after another it is the time of a token that counts, as throughput is often not stated;
* all engines of its page are slow: the slowest of another page with the same model and load is by more than that
  faster than the fastest of at least two here;
* the server was not warm: prompts at least twice as long got their first token in less than 1 / 1.35 of the time from
  the same deployment, users and answers otherwise alike;
* one request out of many waited: the mean TTFT is that of a single request that took more than a tenth of the run
  (its throughput then says when the run began);
* users brought nothing: at least four times as many of them, whom the pool holds as well, got less than a tenth more
  tokens, though the arithmetic of the fewer took less than a tenth of what the GPUs' data sheet has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.errors import KvplanError
from published_speeds.predictions import start_of
from published_speeds.rows import PublishedRow
from published_speeds.settings import Deployed, deployed

MARGIN: Final = 1.35
_MODEL: Final = ("model", "gpu_count", "tp", "pp", "dp", "ep", "dtype", "quantization", "kv_cache_dtype")
_SETTINGS: Final = ("max_num_seqs", "max_num_batched_tokens", "enforce_eager", "max_model_len")
_LOAD: Final = ("input_len", "output_len", "num_prompts", "max_concurrency", "request_rate")
_ENGINE: Final = ("engine", "engine_version")
_SET_UP: Final = (*_ENGINE, *_MODEL, *_SETTINGS, *_LOAD)
"""Columns in which two rows agree that differ in their GPU alone."""
_OF_PAGES: Final = (*_MODEL, *_LOAD)
_OF_PROMPTS: Final = (*_ENGINE, *_MODEL, *_SETTINGS, "gpu", "num_prompts", "max_concurrency", "request_rate")
_OF_USERS: Final = (*_ENGINE, *_MODEL, *_SETTINGS, "gpu", "input_len", "output_len", "request_rate")
_LONGER, _MORE_USERS, _IDLE, _WAITED = 2, 4, 0.1, 0.1


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why a row is hindered, and the id of the row that tells; "" where it tells itself."""

    reason: str
    told_by: str = ""

    def __str__(self) -> str:
        return f"{self.reason} ({self.told_by})" if self.told_by else self.reason


def hindered_rows(rows: Iterable[PublishedRow]) -> dict[str, Hindrance]:
    """By id; the first reason that is found."""
    known = list(rows)
    found: dict[str, Hindrance] = {row.id: Hindrance("one request waited") for row in known if _waited_once(row)}
    found |= _by_pairs(known, _OF_USERS, "more users brought nothing", _brought_nothing)
    found |= _by_pairs(known, _OF_PROMPTS, "longer prompts were faster", _was_not_warm)
    for group in _alike(known, _OF_PAGES):
        found |= _slow_pages(group)
    return found | _by_pairs(known, _SET_UP, "contradicted by its source", _is_contradicted)


Rule = Callable[[PublishedRow, PublishedRow], bool]


def _alike(rows: Iterable[PublishedRow], columns: Sequence[str]) -> Iterable[list[PublishedRow]]:
    """Rows of one source that agree in ``columns``, where there are several."""
    groups: defaultdict[tuple[str, ...], list[PublishedRow]] = defaultdict(list)
    for row in rows:
        groups[(row.source, *(row.text[column] for column in columns))].append(row)
    return (group for group in groups.values() if len(group) > 1)


def _by_pairs(rows: Sequence[PublishedRow], columns: Sequence[str], reason: str, rule: Rule) -> dict[str, Hindrance]:
    pairs = (pair for group in _alike(rows, columns) for pair in permutations(group, 2))
    return {slow.id: Hindrance(reason, fast.id) for slow, fast in pairs if rule(slow, fast)}


def _speed(row: PublishedRow) -> float:
    """Tokens per second: of one request where these are sent one after another, else of all; 0 where not stated."""
    if row.max_concurrency == 1:
        return 1000 / row.measured.tpot_ms if row.measured.tpot_ms else 0.0
    return row.measured.output_throughput or 0.0


def _is_contradicted(slow: PublishedRow, fast: PublishedRow) -> bool:
    ours, theirs = _speed(slow), _speed(fast)
    return ours > 0 and theirs > MARGIN * ours and _is_more_than_sheets(slow, fast, theirs / ours)


def _is_more_than_sheets(slow: PublishedRow, fast: PublishedRow, ratio: float) -> bool:
    """Whether both pools hold the load, and ``ratio`` is more than the data sheets leave."""
    ours, theirs = _held(slow), _held(fast)
    if ours is None or theirs is None:
        return False
    return ratio > MARGIN * _most_apart(ours.choice.gpu, theirs.choice.gpu, slow.num_gpus)


def _held(row: PublishedRow) -> Deployed | None:
    """The deployment; None where it is not known, or its pool does not hold what is in flight."""
    try:
        found = deployed(row)
        pool = start_of(found).kv_cache_tokens * found.replicas
    except KvplanError:
        return None
    at_once = row.max_concurrency or row.num_prompts or 0
    return found if pool >= at_once * (row.input_tokens + row.output_tokens) else None


def _most_apart(slow: GpuProfile, fast: GpuProfile, num_gpus: int) -> float:
    """How many times as fast the data sheets make ``fast`` at most."""
    ratios = [1.0, fast.memory_bandwidth_bytes_per_second / slow.memory_bandwidth_bytes_per_second]
    ratios += [fast.flops(dtype) / slow.flops(dtype) for dtype in ("bfloat16", "float16", "fp8", "fp4", "int8")]
    links = [gpu.link_bytes_per_second(num_gpus) for gpu in (slow, fast)]
    if num_gpus > 1 and links[0] and links[1]:
        ratios.append(links[1] / links[0])
    return max(ratios)


def _slow_pages(group: Sequence[PublishedRow]) -> dict[str, Hindrance]:
    pages: defaultdict[str, list[PublishedRow]] = defaultdict(list)
    for row in group:
        if _speed(row):
            pages[row.text["source_url"].partition("#")[0]].append(row)
    found: dict[str, Hindrance] = {}
    for ours, theirs in permutations(pages.values(), 2):
        fastest, slowest = max(ours, key=_speed), min(theirs, key=_speed)
        has_engines = len({row.text["engine"] for row in ours}) > 1
        if has_engines and _speed(slowest) > MARGIN * _speed(fastest) and _is_contradicted(fastest, slowest):
            found |= {row.id: Hindrance("all engines of its page are slow", slowest.id) for row in ours}
    return found


def _was_not_warm(early: PublishedRow, later: PublishedRow) -> bool:
    """Of a burst of as many answers of the same length; what a prefix cache may have served counts as not read."""
    ours, theirs = early.measured.ttft_ms, later.measured.ttft_ms
    if ours is None or theirs is None or early.output_tokens > 1.1 * later.output_tokens:
        return False
    swept = (int(each) for each in later.text["swept_prompts"].split())
    read = later.input_tokens - max((each for each in swept if each < later.input_tokens), default=0)
    return read >= _LONGER * early.input_tokens and ours > MARGIN * theirs


def _waited_once(row: PublishedRow) -> bool:
    """What the mean has beyond the median is one request's, and more than a tenth of the run.

    Of a closed loop of several rounds: in a burst many wait, and unlike each other.
    """
    text = row.text
    if row.max_concurrency is None or (row.num_prompts or 0) < 2 * row.max_concurrency:
        return False
    if not (text["mean_ttft_ms"] and text["median_ttft_ms"] and text["p99_ttft_ms"] and row.num_prompts):
        return False
    mean, median, p99 = (float(text[f"{name}_ttft_ms"]) for name in ("mean", "median", "p99"))
    beyond = row.num_prompts * (mean - median)
    if beyond <= 0 or p99 < 5 * median or beyond > 2 * p99 or not row.measured.output_throughput:
        return False
    run_ms = 1000 * row.num_prompts * row.output_tokens / row.measured.output_throughput
    return beyond > _WAITED * run_ms


def _brought_nothing(many: PublishedRow, few: PublishedRow) -> bool:
    ours, theirs = many.measured.output_throughput, few.measured.output_throughput
    if not (ours and theirs and many.max_concurrency and few.max_concurrency):
        return False
    if many.max_concurrency < _MORE_USERS * few.max_concurrency or ours > (1 + _IDLE) * theirs:
        return False
    found = _held(many)
    return found is not None and _share_of_peak(few, found) < _IDLE


def _share_of_peak(row: PublishedRow, found: Deployed) -> float:
    """Arithmetic of all tokens by what the data sheet has for 16 bits."""
    tokens = (row.measured.output_throughput or 0.0) * (1 + row.input_tokens / row.output_tokens)
    return tokens * 2 * found.spec.num_active_parameters / (found.choice.gpu.flops("bfloat16") * row.num_gpus)

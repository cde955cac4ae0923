"""The question of a plan from values as people write them, on the command line and in Python."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from kvplan.catalog.devices.gpus import GpuCount, GpuProfile, load_gpus, parse_gpu_count, states_count
from kvplan.catalog.engines import EngineChoice
from kvplan.errors import UsageError, check
from kvplan.estimate.speed.queueing.loads import TracedLoad
from kvplan.planner.question.pattern import load_pattern
from kvplan.planner.question.prices import parse_api_price, parse_prices, read_prices, with_prices
from kvplan.planner.question.request import ParallelSizes, PlanRequest
from kvplan.planner.question.slo import DEFAULT_CONFIDENCE, parse_slo, split_slo
from kvplan.planner.question.trace import TraceWords, check_playable
from kvplan.setting_values import parse_share, split_list
from kvplan.settings import KNOBS, ServingSettings
from kvplan.units import parse_tokens
from kvplan.workload.part import FilePart, file_part
from kvplan.workload.shape import FileShape, rates_as_text, shape_of_file

_NUMBER: Final = re.compile(r"[+-]?(?:\d{1,3}(?:[,_]\d{3})+|\d+)?(?:\.\d+)?(?:e[+-]?\d{1,3})?|[+-]?(?:inf|nan)")
_PER: Final = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0}
"""Seconds of what a rate may be for."""
PLAN_SETTINGS: Final = (
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "device_memory_bytes",
    "reserved_bytes",
    "cpu_offload_gb",
    "max_num_batched_tokens",
    "max_num_seqs",
    "block_size",
    "enforce_eager",
    "enable_prefix_caching",
    "dtype",
    "group_size",
    "encoder_tokens",
    "language_model_only",
    "limit_mm_per_prompt",
    "skip_mm_profiling",
    "warm_start",
    "expandable_segments",
    "enable_lora",
    "max_loras",
    "max_lora_rank",
    "nvlink_bridge",
    "network_bytes_per_second",
    "moe_backend",
    "num_speculative_tokens",
    "speculative_method",
    "speculative_model",
    "acceptance_rate",
)
"""Settings that every deployment of a plan shares; the others are what a plan finds."""
_OF_FILE: Final = {"start", "end", "speed", "sample", "trace_unit", "spread_ticks"}
_COUNT: Final = re.compile(r"\d{1,9}")


def plan_request(
    engine: EngineChoice,
    settings: ServingSettings,
    *,
    users: int | str | None = None,
    request_rate: float | str | None = None,
    ctx_avg: str | None = None,
    ctx_max: str | None = None,
    input_len: str | None = None,
    output_len: str | None = None,
    slo: Sequence[str] | None = None,
    confidence: str | None = None,
    thorough: bool = False,
    worst_case: bool = False,
    headroom: str | None = None,
    gpu: Sequence[str] | None = None,
    max_gpus: int | None = None,
    spare_replicas: int = 0,
    tensor_parallel_size: Sequence[str] | None = None,
    pipeline_parallel_size: Sequence[str] | None = None,
    data_parallel_size: Sequence[str] | None = None,
    enable_expert_parallel: bool | None = None,
    nodes: int | None = None,
    budget: float | str | None = None,
    price: Sequence[str] | None = None,
    prices: Path | None = None,
    api_price: str | None = None,
    quantization: Sequence[str] | None = None,
    kv_cache_dtype: Sequence[str] | None = None,
    workload: Path | None = None,
    **more: Any,
) -> PlanRequest:
    """Return the question that options of ``kvplan plan`` ask. UsageError for a value that cannot be read.

    ``more``: which part of a ``workload``'s file (``file_part``), what is asked of a trace (``TraceWords``), and what
    ``load_pattern`` takes.
    """
    if users is not None and request_rate is not None:
        raise UsageError("--users cannot be used with --request-rate.", hint="give one of them")
    of_file = {name: more.pop(name) for name in _OF_FILE & more.keys()}
    words, pattern = TraceWords.taken_from(more), more
    named = {name: parse_gpu_count(name) for name in split_list(gpu)}
    listed = _gpus(list(named.values()))
    if prices is not None:
        listed = with_prices(listed, read_prices(prices), f"from {prices.name}")
    kv_cache_dtypes = map(KNOBS["kv_cache_dtype"].canonical_name, split_list(kv_cache_dtype))
    sizes = ParallelSizes(
        tensor=_sizes(tensor_parallel_size, "--tensor-parallel-size"),
        pipeline=_sizes(pipeline_parallel_size, "--pipeline-parallel-size"),
        data=_sizes(data_parallel_size, "--data-parallel-size"),
        enable_expert_parallel=enable_expert_parallel,
        num_nodes=_positive(nodes, "--nodes"),
    )
    asked = PlanRequest(
        num_users=_positive(read_users(users), "--users"),
        requests_per_second=_positive(read_rate(request_rate), "--request-rate"),
        average_context=_tokens(ctx_avg),
        longest_context=_tokens(ctx_max),
        input_tokens=_tokens(input_len),
        output_tokens=_tokens(output_len),
        slo=parse_slo(split_slo(slo or [])),
        gpus=with_prices(listed, parse_prices(split_list(price))),
        max_gpus=_positive(max_gpus, "--max-gpus") or _largest_count(named),
        confidence=_confidence(confidence),
        thorough=thorough,
        sizes=sizes,
        quantizations=tuple(name.casefold() for name in split_list(quantization)) or None,
        kv_cache_dtypes=tuple(kv_cache_dtypes) or None,
        worst_case=worst_case,
        headroom=_headroom(headroom),
        num_spare_replicas=_not_negative(spare_replicas, "--spare-replicas"),
        usd_per_hour=_positive(read_dollars(budget), "--budget"),
        api_price=None if api_price is None else parse_api_price(api_price),
        pattern=load_pattern(**pattern),
        engine=engine,
        settings=settings,
    )
    has_rate = request_rate is not None
    part = file_part(**of_file, output_len=output_len, has_file=workload is not None, has_rate=has_rate)
    if workload is None:
        words.refuse()
        return asked
    refuse_beside_file(
        {
            "--ctx-avg": ctx_avg,
            "--input-len": input_len,
            "--length-spread": pattern.get("length_spread"),
            "--burstiness": pattern.get("burstiness"),
            "--turns": pattern.get("turns"),
            "--prefix-len": pattern.get("prefix_len"),
        }
    )
    has_load = users is not None or has_rate or pattern.get("prefix_hit_rate") is not None
    return _with_workload(asked, workload, part, words, has_load=has_load)


def _with_workload(
    asked: PlanRequest, workload: Path, part: FilePart, words: TraceWords, *, has_load: bool
) -> PlanRequest:
    """``asked`` of the file's load. has_load: beside it another one is given, of which the file says the lengths."""
    is_trace = words.plays_trace and not has_load
    if is_trace:
        check(
            not asked.worst_case,
            "--worst-case cannot be used with a trace",
            "its requests are as long as the file says",
        )
        check_playable(workload, part)
    found = with_file(asked, workload, part)
    if not is_trace or found.requests_per_second is None:
        words.refuse()
        return found
    return replace(found, trace=words.question(workload, part))


def _gpus(named: Sequence[GpuCount]) -> tuple[GpuProfile, ...]:
    if named:
        gpus = tuple(dict.fromkeys(each.gpu for each in named))
        _check_once(gpus)
        return gpus
    return tuple(gpu for gpu in load_gpus() if not gpu.is_cpu)


def _check_once(gpus: Sequence[GpuProfile]) -> None:
    """A plan's rows are told apart by their GPUs. UsageError where one stands in two instances."""
    kinds: dict[str, GpuProfile] = {}
    for gpu in gpus:
        other = kinds.setdefault(gpu.id, gpu)
        if other is not gpu:
            names = [each.rented_as or each.id for each in (other, gpu)]
            raise UsageError(f"{' and '.join(names)} are the same GPUs.", hint="plan with one of them at a time")


def _largest_count(named: Mapping[str, GpuCount]) -> int | None:
    """``8xh200`` allows as many, ``1xh200`` one; names alone as many as a plan without a limit may have."""
    counted = (each.num_gpus for name, each in named.items() if each.num_gpus > 1 or states_count(name))
    return max(counted, default=None)


def _confidence(text: str | None) -> float:
    """``90%`` or ``0.9`` -> 0.9; nothing -> the default. UsageError outside 0.5 to 0.99."""
    if text is None:
        return DEFAULT_CONFIDENCE
    share = parse_share(text, "--confidence", example="0.9")
    if not 0.5 <= share <= 0.99:
        raise UsageError("--confidence must be from 0.5 to 0.99.", hint="for example --confidence 0.9")
    return share


def _tokens(text: str | None) -> int | None:
    return None if text is None else parse_tokens(text)


def _sizes(texts: Sequence[str] | None, option: str) -> tuple[int, ...] | None:
    """``["1,2", "4"]`` -> (1, 2, 4)."""
    words = split_list(texts)
    if not words:
        return None
    if not all(_COUNT.fullmatch(word) and int(word) > 0 for word in words):
        raise UsageError(f"{option} takes numbers of GPUs, got '{', '.join(words)}'.", hint=f"for example {option} 2,4")
    return tuple(map(int, words))


def _headroom(text: str | None) -> float:
    """``20%`` or ``0.2`` -> 0.2; nothing -> 0. UsageError below 0 or above 1000 %."""
    if text is None:
        return 0.0
    share = parse_share(text, "--headroom", example="20%")
    if not 0 <= share <= 10:
        hint = f"for 20 % say --headroom 20%, or 0.2; {text.strip()} is {100 * share:g} %"
        raise UsageError("--headroom must be from 0 to 1000 %.", hint=hint)
    return share


Number = TypeVar("Number", int, float)


def _positive(number: Number | None, option: str) -> Number | None:
    if number is not None and not 0 < number < float("inf"):
        wanted = "finite" if number == float("inf") else "above 0"
        raise UsageError(f"{option} must be {wanted}, got {number}.", hint=f"for example {option} 8")
    return number


def _not_negative(number: int, option: str) -> int:
    if number < 0:
        raise UsageError(f"{option} must be 0 or more, got {number}.", hint=f"for example {option} 1")
    return number


def read_users(written: float | str | None) -> int | None:
    """``1e3``, ``1,000`` or 1000 -> 1000. UsageError for what is no whole number."""
    if written is None:
        return None
    number = _number(written)
    if number is None or number != number or number in (float("inf"), float("-inf")) or number != int(number):
        raise UsageError("Invalid value for '--users': it must be a whole number.", hint="for example --users 40")
    return int(number)


def read_rate(written: float | str | None) -> float | None:
    """``12/s``, ``720/min`` or 12 -> 12.0 per second. UsageError for anything else."""
    if written is None:
        return None
    text, slash, unit = str(written).lower().removesuffix("req/s").partition("/")
    if not slash:
        text, unit = text.removesuffix("rps"), "s"
    number = _number(text)
    if number is None or unit.strip() not in _PER:
        raise UsageError(
            "Invalid value for '--request-rate': it must be a number.", hint="requests per second, such as 12 or 12/s"
        )
    return number / _PER[unit.strip()]


def read_dollars(written: float | str | None) -> float | None:
    """``$60``, ``60/h`` or 60 -> 60.0 US dollars per hour. UsageError for anything else."""
    if written is None:
        return None
    text, _, unit = str(written).lower().replace("usd", "").replace("$", "").partition("/")
    number = _number(text)
    if number is None or unit.strip() not in ("", "h", "hr", "hour"):
        raise UsageError(
            "Invalid value for '--budget': it must be a number.", hint="US dollars per hour, such as --budget 60"
        )
    return number


def _number(written: float | str) -> float | None:
    text = str(written).strip().lower()
    if not text or _NUMBER.fullmatch(text) is None:
        return None
    try:
        return float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return None


def refuse_beside_file(given: Mapping[str, object]) -> None:
    """UsageError for an option that says what the file says."""
    for option, value in given.items():
        check(value is None, f"{option} cannot be used with --workload", "the file gives the lengths")


def with_file(request: PlanRequest, path: Path, part: FilePart) -> PlanRequest:
    """``request`` with the load of the file: of its busiest five minutes, where neither users nor a rate are given.

    A prefix cache is counted on as far as --prefix-hit-rate says, and what the file would allow is told.
    """
    shape = shape_of_file(path, part, request.longest_context)
    rate, notes = request.requests_per_second, list(shape.notes)
    if request.num_users is None and rate is None:
        rate = shape.busiest_rate
        if rate is not None:
            rate = float(f"{rate:.4g}")
            notes.append(f"--request-rate {rate:.3g}: {rates_as_text(shape)}.")
    check(
        request.num_users is not None or rate is not None,
        f"A plan needs a load, and {path.name} gives none: its requests have no times, or all the same one",
        "give --users 40 or --request-rate 2 beside it",
    )
    notes += _of_reuse(request, shape)
    shares = shape.reused_share is not None
    trace = TracedLoad(path.name, shape.pairs, shape.gaps, shape.busiest_rate or 0.0, shares, shape.longest)
    return replace(
        request,
        requests_per_second=rate,
        input_tokens=max(round(shape.input_tokens), 1),
        output_tokens=max(round(shape.output_tokens), 1),
        longest_context=request.longest_context or shape.longest,
        pattern=replace(request.pattern, trace=trace),
        load_notes=tuple(notes),
    )


def _of_reuse(request: PlanRequest, shape: FileShape) -> list[str]:
    if shape.reused_share is None:
        return []
    found = f"a cache that keeps everything would find {100 * shape.reused_share:.1f} % of the prompts' tokens"
    counted = "this plan counts none of it; --prefix-hit-rate says what to count on"
    if request.pattern.sharing.hit_rate is not None:
        counted = f"this plan counts {100 * request.pattern.sharing.hit_rate:g} %"
    return [f"prefix cache: {found}; {counted}."]

"""The load of a row, played as its engine composes steps."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import Final

from kvplan.catalog.releases.sglang import sglang_release
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.sglang import SglangPrediction, predict_sglang
from kvplan.estimate.speed.queueing.front_end import NO_FRONT_END
from kvplan.estimate.speed.queueing.loads import Lengths, PlayedLoad
from kvplan.estimate.speed.queueing.rules import (
    SGLANG_MOST_RUNNING,
    SchedulingRules,
    sglang_rules,
    trtllm_rules,
    vllm_rules,
)
from kvplan.estimate.trtllm import predict_trtllm
from kvplan.estimate.vllm.prediction import VllmPrediction
from kvplan.units import GIB
from published_speeds.accelmark import SOURCE as ACCELMARK
from published_speeds.accelmark import streams_late, suite_of
from published_speeds.chats import PairedLoad, sampled_pairs
from published_speeds.rows import PublishedRow
from published_speeds.settings import Deployed

_CLOSED_ROUNDS: Final = 10
"""Requests per user where a row does not say how many were sent: InferenceX sends ten."""
_MOST_REQUESTS: Final = 4096
_CHATS: Final = ("gpustack", "cloudrift")
"""Their commands have ``--backend openai-chat`` (each page of gpustack's; benchmarks/3_vllm_benchmark.sh)."""
_ANSWERS_EMPTY: Final = "many answers are empty"
_SWEPT_CONTEXTS: Final = (1024, 2048, 4096, 8192, 15000)
"""llm-benchmaxxing sends prompts of these lengths to one vLLM server, one length after the other (its server.py and
benchmark.py). ``vllm bench serve`` makes its random prompts of one seed, so that each begins with the same prompt of
the length before, and the server has the prefix cache of vLLM's default."""


def _found_tokens(row: PublishedRow, replicas: int, pool: float) -> int:
    """Of each prompt, in the prefix cache: those of the sweep's run before, where its prompts all fit the pool.

    Data-parallel groups have a cache each, and a prompt is sent to any of them.
    """
    longest = row.input_tokens + row.output_tokens
    if (
        row.source != "benchmaxxing"
        or row.text["engine"] != "vLLM"
        or (row.num_prompts or 0) * longest > pool * replicas
    ):
        return 0
    before = max((each for each in _SWEPT_CONTEXTS if each < row.input_tokens), default=0)
    return before // row.data_parallel_size


def played_load(row: PublishedRow, replicas: int, pool: float) -> PlayedLoad:
    """What one of ``replicas`` is sent; each has ``pool`` tokens."""
    concurrency = None if row.max_concurrency is None else max(round(row.max_concurrency / replicas), 1)
    number = _num_requests(row)
    rate = None if row.request_rate is None else row.request_rate / replicas
    prompts, answers = _lengths(row)
    count = min(max(round(number / replicas), 1), _MOST_REQUESTS)
    found = _found_tokens(row, replicas, pool)
    if not _is_sharegpt(row):
        return PlayedLoad(prompts, answers, count, rate, concurrency, found)
    pairs = sampled_pairs(count, row.input_tokens, row.output_tokens, with_empty=_ANSWERS_EMPTY in row.notes)
    return PairedLoad(prompts, answers, count, rate, concurrency, found, pairs=pairs)


def _is_sharegpt(row: PublishedRow) -> bool:
    """Of vLLM's own sample or one like it; AccelMark's is another."""
    return "sharegpt" in _said(row) and suite_of(row) is None


def _said(row: PublishedRow) -> str:
    """In lower case, what the row says of its prompts."""
    return f"{row.text['prefix_cache_or_random']} {row.notes}".casefold()


def _num_requests(row: PublishedRow) -> int:
    suite = suite_of(row)
    if suite and suite.num_online and row.request_rate:
        return suite.num_online
    return row.num_prompts or _CLOSED_ROUNDS * (row.max_concurrency or 100)


def _lengths(row: PublishedRow) -> tuple[Lengths, Lengths]:
    if suite := suite_of(row):
        return suite.lengths()
    ratio = re.search(r"range[_ ]ratio[ =]*(\d\.\d+)", _said(row))
    if ratio and row.source == "benchmaxxing":  # its row states the means
        least = float(ratio.group(1))
        return Lengths(row.input_tokens, "uniform", least), Lengths(row.output_tokens, "uniform", least)
    if ratio and row.source == "inferencex":
        least = float(ratio.group(1))
        middle = (1 + least) / 2
        return (
            Lengths(row.input_tokens * middle, "uniform", least),
            Lengths(row.output_tokens * middle, "uniform", least),
        )
    return Lengths(row.input_tokens), _ended_early(row)


_AT_MOST: Final = re.compile(r"requested output (\d+) but no ignore-eos")


def _ended_early(row: PublishedRow) -> Lengths:
    """Answers; those that a model ends by itself spread evenly around their mean, up to what was asked for."""
    mean, asked = row.output_tokens, _AT_MOST.search(row.notes)
    if asked is None or float(asked.group(1)) <= mean:
        return Lengths(mean)
    return Lengths(mean, "uniform", max(2 * mean / float(asked.group(1)) - 1, 0.0))


_STATED_POOL: Final = re.compile(r"KV cache ([\d.]+) GiB per GPU")


def pool_tokens(row: PublishedRow, found: Deployed, start: VllmPrediction, vllm_tokens: float) -> float:
    """Tokens of all groups' pools: as many as the row's bytes hold, else by the engine's own memory model.

    ``vllm_tokens``: those of vLLM's ``start``.
    """
    groups, gpu = found.choice.layout.data_parallel_size, found.choice.gpu
    tokens = vllm_tokens
    if stated := _STATED_POOL.search(row.notes):
        return tokens * float(stated.group(1)) * GIB / max(start.rank.available_kv_bytes, 1)
    with contextlib.suppress(KvplanError):
        if found.engine == "SGLang":
            tokens = groups * _sglang_pools(found).kv_cache_tokens
        elif found.engine == "TensorRT-LLM":
            tokens = groups * predict_trtllm(found.spec, gpu, found.settings, found.version).kv_cache_tokens
    if found.engine != "vLLM" and tokens < groups * found.workload.longest_context:
        raise UsageError(f"{found.engine} has no room for one request with what is stated: something else was started")
    return tokens


def _sglang_pools(found: Deployed) -> SglangPrediction:
    groups = found.choice.layout.data_parallel_size
    gpu, version = found.choice.gpu, found.version
    return predict_sglang(found.spec, gpu, found.settings, version=version, dp_attention=groups > 1)


def _sglang_seats(found: Deployed) -> int:
    """Of one group; the usual number where its pools are not modelled."""
    try:
        return _sglang_pools(found).max_running_requests
    except KvplanError:
        asked = found.settings.max_num_seqs or SGLANG_MOST_RUNNING
        return max(asked // found.choice.layout.data_parallel_size, 1)


def engine_rules(row: PublishedRow, found: Deployed, start: VllmPrediction, pool_tokens: float) -> SchedulingRules:
    """Of the row's engine."""

    layout, asked = found.choice.layout, found.settings
    if found.engine == "SGLang":
        release = sglang_release(found.version)
        chunk = asked.max_num_batched_tokens or release.chunked_prefill_tokens(found.choice.gpu.memory_bytes)
        groups = layout.data_parallel_size  # which share the chunk and the seats (server_args.py, scheduler.py)
        rules = sglang_rules(release.group_prefill_tokens(chunk, groups), pool_tokens, _sglang_seats(found))
    elif found.engine == "TensorRT-LLM":
        chunks = "--enable_chunked_prefill" in row.notes
        rules = trtllm_rules(pool_tokens, asked.max_num_seqs, asked.max_num_batched_tokens, chunks_prompts=chunks)
    else:
        chats = row.source in _CHATS
        rules = vllm_rules(start.settings.serving, vllm_release(found.version), pool_tokens, chats=chats)
        is_shared = "independent" not in row.notes and not vllm_release(found.version).server_per_group
        if is_shared:  # groups are beside each other, behind one API server
            rules = replace(rules, front_end=rules.front_end.shared_by(found.replicas))
    if row.source == ACCELMARK:
        late = streams_late(row) if found.is_first_engine else 0.0
        rules = replace(rules, front_end=NO_FRONT_END, streams_late=late)
    return rules.over_groups(layout.data_parallel_size, layout.pipeline_parallel_size)

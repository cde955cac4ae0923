"""The load of a row, played as its engine composes steps."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Final

from kvplan.catalog.releases.sglang import sglang_release
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.sglang import SglangPrediction, predict_sglang
from kvplan.estimate.speed.queueing.front_end import NO_FRONT_END, FrontEnd
from kvplan.estimate.speed.queueing.loads import LengthDistribution, PlayedLoad
from kvplan.estimate.speed.queueing.rules import (
    SGLANG_MOST_RUNNING,
    SchedulingRules,
    sglang_rules,
    trtllm_rules,
    vllm_rules,
)
from kvplan.estimate.speed.steps.host import IN_PROCESS
from kvplan.estimate.trtllm import predict_trtllm
from kvplan.estimate.vllm.prediction import VllmPrediction
from kvplan.units import GIB
from published_speeds.chats import PairedLoad, sampled_pairs
from published_speeds.rows import PublishedRow
from published_speeds.samples import sample_of
from published_speeds.settings import Deployed, release_of

_CLOSED_ROUNDS: Final = 10
"""Requests per user where a row does not say how many were sent: InferenceX sends ten."""
_MOST_REQUESTS: Final = 4096


def _found_tokens(row: PublishedRow, replicas: int, pool: float) -> int:
    """Of each prompt, in the prefix cache: those of the sweep's run before, where its prompts all fit the pool.

    ``vllm bench serve`` makes its random prompts of one seed, so that each begins with the same prompt of the length
    before, and the server has the prefix cache of vLLM's default. Data-parallel groups have a cache each, and a prompt
    is sent to any of them.
    """
    longest = row.input_tokens + row.output_tokens
    if row.text["engine"] != "vLLM" or (row.num_prompts or 0) * longest > pool * replicas:
        return 0
    swept = (int(each) for each in row.text["swept_prompts"].split())
    before = max((each for each in swept if each < row.input_tokens), default=0)
    return before // row.data_parallel_size


def played_load(row: PublishedRow, replicas: int, pool: float) -> PlayedLoad:
    """What one of ``replicas`` is sent; each has ``pool`` tokens."""
    concurrency = None if row.max_concurrency is None else max(round(row.max_concurrency / replicas), 1)
    number = _num_requests(row)
    rate = None if row.request_rate is None else row.request_rate / replicas
    prompts, answers = _lengths(row)
    count = min(max(round(number / replicas), 1), _MOST_REQUESTS)
    found = _found_tokens(row, replicas, pool)
    load = PlayedLoad(prompts, answers, count, rate, concurrency, found)
    if row.text["length_sample"] == _SHAREGPT:
        pairs = sampled_pairs(count, row.input_tokens, row.output_tokens, with_empty=row.says("empty_answers"))
        load = PairedLoad(prompts, answers, count, rate, concurrency, found, pairs=pairs)
    return replace(load, first_cached_tokens=max(found, _of_test_request(row, load.lengths[0][0])))


_BLOCK: Final = 16


def _of_test_request(row: PublishedRow, prompt: int) -> int:
    """Tokens of the first prompt that the prefix cache has, as the client sent it before the run began.

    ``vllm bench serve`` and SGLang's ``bench_serving`` try the server with their first prompt (``input_requests[0]``).
    vLLM's log of a run of one prompt of 1,024 tokens says "Prefix cache hit rate: 49.2%", 1,008 of 2,048, and of ten on
    a new server 8.9 % (dennislee22/vLLM-benchmarking, README.md). Both print a line that others do not.
    """
    is_tried = "Benchmark duration (s)" in row.text["verbatim"]
    engine = row.text["engine"]
    caches = engine == "SGLang" or (engine == "vLLM" and vllm_release(release_of(row)).v1)
    if not is_tried or not caches or row.text["prefix_caching"] == "no":
        return 0
    return (prompt - 1) // _BLOCK * _BLOCK


_SHAREGPT: Final = "sharegpt"
"""vLLM's own sample or one like it."""


def _num_requests(row: PublishedRow) -> int:
    sample = sample_of(row)
    if sample and sample.num_online and row.request_rate:
        return sample.num_online
    return row.num_prompts or _CLOSED_ROUNDS * (row.max_concurrency or 100)


_UNSAID: Final = 0.5
"""The spread of lengths of which a row says nothing: that of a plan whose user says nothing of it (``plan`` plays from
two thirds of the mean to four thirds), as equal lengths would move all requests in step."""


def _lengths(row: PublishedRow) -> tuple[LengthDistribution, LengthDistribution]:
    if sample := sample_of(row):
        return sample.lengths()
    least = row.number("range_ratio")
    if least is None and not row.text["lengths_are"] and row.number("asked_output") is None:
        spread = LengthDistribution(row.input_tokens, "uniform", _UNSAID)
        return spread, replace(spread, mean=row.output_tokens)
    if least is None or least == 1:
        return LengthDistribution(row.input_tokens), _ended_early(row)
    mean = 1.0 if row.text["lengths_are"] == "means" else (1 + least) / 2
    return LengthDistribution(row.input_tokens * mean, "uniform", least), LengthDistribution(
        row.output_tokens * mean, "uniform", least
    )


def _ended_early(row: PublishedRow) -> LengthDistribution:
    """Answers; those that a model ends by itself spread evenly around their mean, up to what was asked for."""
    mean, asked = row.output_tokens, row.number("asked_output")
    if asked is None or asked <= mean:
        return LengthDistribution(mean)
    return LengthDistribution(mean, "uniform", max(2 * mean / asked - 1, 0.0))


def pool_tokens(row: PublishedRow, found: Deployed, start: VllmPrediction, vllm_tokens: float) -> float:
    """Tokens of all groups' pools: as many as the row's bytes hold, else by the engine's own memory model.

    ``vllm_tokens``: those of vLLM's ``start``.
    """
    groups, gpu = found.choice.layout.data_parallel_size, found.choice.gpu
    tokens = vllm_tokens
    if stated := row.number("kv_gib_per_gpu"):
        return tokens * stated * GIB / max(start.rank.available_kv_bytes, 1)
    with contextlib.suppress(KvplanError):
        if found.engine == "SGLang":
            tokens = groups * _sglang_pools(found).kv_cache_tokens
        elif found.engine == "TensorRT-LLM":
            tokens = groups * predict_trtllm(found.spec, gpu, found.settings, found.version).kv_cache_tokens
    if found.engine != "vLLM" and tokens < groups * found.workload.longest_context:
        raise UsageError(f"{found.engine} has no room for one request with what is stated: something else was started")
    return tokens


def _streams_late(row: PublishedRow) -> float:
    """Seconds that tokens wait at most in the event loop that clients and the first engine share.

    A client that keeps several requests in flight wakes it each time that it looks.
    """
    seconds = row.number("polling_s")
    return math.inf if seconds is None or (row.max_concurrency or 1) <= 1 else seconds


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
        chunk = release.group_prefill_tokens(chunk, groups)
        rules = sglang_rules(chunk, pool_tokens, _sglang_seats(found), has_groups=groups > 1)
        rules = replace(rules, recv_interval=int(row.number("recv_interval") or 1))
    elif found.engine == "TensorRT-LLM":
        chunks = row.says("chunked_prefill")
        rules = trtllm_rules(pool_tokens, asked.max_num_seqs, asked.max_num_batched_tokens, chunks_prompts=chunks)
    else:
        chats = row.text["api"] == "chat"
        serving, release, kind = start.settings.serving, vllm_release(found.version), found.spec.model_type
        rules = vllm_rules(serving, release, pool_tokens, chats=chats, model_type=kind)
        is_shared = not row.says("independent_replicas") and not release.server_per_group
        if is_shared:  # groups are beside each other, behind one API server
            rules = replace(rules, front_end=rules.front_end.shared_by(found.replicas))
    if row.text["api"] == "offline":
        rules = replace(rules, front_end=NO_FRONT_END)
    if row.text["api"] == IN_PROCESS:
        late = _streams_late(row) if found.is_first_engine else 0.0
        away = FrontEnd(away_seconds=rules.front_end.away_seconds)
        rules = replace(rules, front_end=away, streams_late=late)
    return rules.over_groups(layout.data_parallel_size, layout.pipeline_parallel_size)

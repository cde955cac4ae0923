"""Throughput: scheduling, prefix caching, swapping and transformers, each against its baseline.

Runs in the worker process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from kvplan.bench.figures import Experiment, compare
from kvplan.bench.options import BenchOrder, BenchScale
from kvplan.bench.serving import (
    BenchRequest,
    ServedWorkload,
    exponential_lengths,
    make_engine,
    random_prompt,
    serve,
    serve_under_load,
    set_up,
)
from kvplan.units import plural
from kvplan_engine import Engine

_BLOCK_SIZE = 16
ENOUGH_SECONDS = 15.0


def make_full_engine(order: BenchOrder) -> Engine:
    """The whole model, once for all experiments of this module."""
    return make_engine(
        order.engine, max_model_len=1024, max_num_batched_tokens=512, max_num_seqs=16, block_size=_BLOCK_SIZE
    )


def alternate(num_rounds: int, baseline: Callable[[], Any], measured: Callable[[], Any]) -> tuple[list[Any], list[Any]]:
    """Both sides alternately, so that disturbances affect both; no further round once ENOUGH_SECONDS have passed."""
    before, after = [], []
    started = time.perf_counter()
    for _ in range(num_rounds):
        before.append(baseline())
        after.append(measured())
        if time.perf_counter() - started > ENOUGH_SECONDS:
            break
    return before, after


def _speeds(runs: list[ServedWorkload]) -> list[float]:
    return [run.tokens_per_second for run in runs]


# ---- continuous against static batching


def mixed_requests(engine: Engine, scale: BenchScale, num_batches: int, seed: int) -> list[BenchRequest]:
    rng = np.random.default_rng(seed)
    count = scale.batch_size * num_batches
    answers = exponential_lengths(rng, scale.batch_mean_answer, count, scale.batch_max_answer)
    return [BenchRequest(random_prompt(rng, engine, scale.batch_prompt), answer) for answer in answers]


def padded(requests: list[BenchRequest], batch_size: int) -> list[BenchRequest]:
    """The same requests as a static batch computes them: all rows until the longest answer is complete."""
    result = []
    for start in range(0, len(requests), batch_size):
        batch = requests[start : start + batch_size]
        longest = max(request.num_output_tokens for request in batch)
        result += [replace(request, num_output_tokens=longest) for request in batch]
    return result


def scheduling(order: BenchOrder, scale: BenchScale, engine: Engine) -> Experiment:
    """Under load, which for static batches means all of them but the last."""
    requests = mixed_requests(engine, scale, scale.num_batches, order.seed)
    in_batches = padded(requests, scale.batch_size)
    num_requested_tokens = sum(request.num_output_tokens for request in requests[: -scale.batch_size])

    def run(mode: str, work: list[BenchRequest]) -> ServedWorkload:
        set_up(engine, max_num_seqs=scale.batch_size, enable_prefix_caching=False, scheduling=mode)
        return serve_under_load(engine, work)

    def static() -> float:
        return num_requested_tokens / run("static", in_batches).seconds

    def continuous() -> float:
        return run("continuous", requests).tokens_per_second

    before, after = alternate(order.num_rounds, static, continuous)
    emptying = [run("static", requests).tokens_per_second]
    set_up(engine, scheduling="continuous")
    return Experiment(
        name="scheduling",
        title="Throughput: static vs continuous batching",
        baseline="static",
        measured="continuous",
        workload=(
            f"{len(requests)} requests, batches of {scale.batch_size}, prompts of {scale.batch_prompt} tokens, answers "
            f"exponentially distributed around {scale.batch_mean_answer} (at most {scale.batch_max_answer}); measured "
            "from a full batch until no request waits"
        ),
        figures=(
            compare("output, static batches padded", "tokens/s", before, after, higher_is_better=True),
            compare("output, finished rows dropped", "tokens/s", emptying, after[-1:], higher_is_better=True),
        ),
        notes=(
            "padded: a static batch computes all its rows until its longest answer is complete, as generate() does; "
            "dropped: finished rows leave the batch, but no request joins it; only requested tokens count",
        ),
    )


# ---- a repeated prefix


def prefix(order: BenchOrder, scale: BenchScale, engine: Engine) -> Experiment:
    rng = np.random.default_rng(order.seed)
    shared = random_prompt(rng, engine, scale.prefix_tokens)
    prompts = [shared + random_prompt(rng, engine, scale.question_tokens) for _ in range(1 + scale.num_questions)]

    def run(is_caching: bool) -> list[ServedWorkload]:
        set_up(engine, enable_prefix_caching=is_caching)
        if is_caching:
            serve(engine, [BenchRequest(prompts[0], 1)])  # the request that fills the cache is not a repetition
        return [serve(engine, [BenchRequest(prompt, 8)]) for prompt in prompts[1:]]

    before, after = alternate(order.num_rounds, lambda: run(False), lambda: run(True))

    def first_tokens(rounds: list[list[ServedWorkload]]) -> list[float]:
        return [1000 * float(np.median([run.first_token_seconds[0] for run in runs])) for runs in rounds]

    def speeds(rounds: list[list[ServedWorkload]]) -> list[float]:
        return [sum(run.num_output_tokens for run in runs) / sum(run.seconds for run in runs) for runs in rounds]

    one_by_one = " one after the other," if scale.num_questions > 1 else ""
    return Experiment(
        name="prefix",
        title=f"A repeated prefix of {scale.prefix_tokens} tokens",
        baseline="no prefix cache",
        measured="prefix cache",
        workload=(
            f"{plural(scale.num_questions, 'request')}{one_by_one} of {scale.prefix_tokens} shared and "
            f"{scale.question_tokens} own tokens, 8 output tokens"
        ),
        figures=(
            compare("time to first token", "ms", first_tokens(before), first_tokens(after), higher_is_better=False),
            compare("output throughput", "tokens/s", speeds(before), speeds(after), higher_is_better=True),
        ),
    )


# ---- an overfull pool


def swap(order: BenchOrder, scale: BenchScale, engine: Engine) -> Experiment:
    rng = np.random.default_rng(order.seed)
    requests = [
        BenchRequest(random_prompt(rng, engine, scale.swap_prompt), scale.swap_answer)
        for _ in range(scale.swap_sequences)
    ]
    at_start = -(-scale.swap_prompt // _BLOCK_SIZE)
    at_end = -(-(scale.swap_prompt + scale.swap_answer) // _BLOCK_SIZE)
    num_blocks = scale.swap_sequences * at_start + (at_end - at_start)  # all prompts fit, the answers do not
    max_model_len = scale.swap_prompt + scale.swap_answer
    counts: dict[str, dict[str, int]] = {}

    def run(mode: str) -> ServedWorkload:
        swap_space = num_blocks * engine.memory.block_bytes if mode == "swap" else 0
        set_up(
            engine,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            enable_prefix_caching=False,
            preemption_mode=mode,
            swap_space=swap_space,
        )
        served = serve(engine, requests)
        stats = engine.get_stats()
        counts[mode] = {name: stats[name] for name in ("num_preemptions", "recomputed_tokens", "num_swaps")}
        return served

    before, after = alternate(order.num_rounds, lambda: run("recompute"), lambda: run("swap"))
    set_up(engine, max_model_len=1024, preemption_mode="auto", swap_space=0)
    recomputed = [counts[mode]["recomputed_tokens"] for mode in ("recompute", "swap")]
    return Experiment(
        name="swap",
        title="An overfull pool: recomputing vs swapping",
        baseline="recompute",
        measured="swap",
        workload=(
            f"{scale.swap_sequences} prompts of {scale.swap_prompt} tokens with answers of {scale.swap_answer} in a "
            f"pool of {num_blocks * _BLOCK_SIZE:,} tokens"
        ),
        figures=(
            compare("output throughput", "tokens/s", _speeds(before), _speeds(after), higher_is_better=True),
            compare("tokens computed again", "tokens", [recomputed[0]], [recomputed[1]], higher_is_better=False),
        ),
        notes=(
            f"{counts['recompute']['num_preemptions']} preemptions when recomputing, "
            f"{counts['swap']['num_preemptions']} when swapping",
        ),
    )


# ---- transformers


def against_transformers(order: BenchOrder, scale: BenchScale, engine: Engine) -> Experiment:
    requests = mixed_requests(engine, scale, 1, order.seed)
    model = _transformers_model(order)

    def ours() -> float:
        set_up(engine, max_num_seqs=scale.batch_size, enable_prefix_caching=False)
        return serve(engine, requests).tokens_per_second

    before, after = alternate(order.num_rounds, lambda: _generate_speed(model, requests), ours)
    return Experiment(
        name="transformers",
        title="Throughput: transformers' generate vs kvplan's engine",
        baseline="transformers",
        measured="kvplan",
        workload=(
            f"{len(requests)} requests in one padded batch, prompts of {scale.batch_prompt} tokens, answers "
            f"exponentially distributed around {scale.batch_mean_answer}; only requested tokens count"
        ),
        figures=(compare("output throughput", "tokens/s", before, after, higher_is_better=True),),
    )


def _transformers_model(order: BenchOrder) -> Any:
    """The same model as transformers runs it, with random weights: its speed does not depend on their values."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    values = dict(order.engine["model"])
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    dtype = {"auto": "float32"}.get(order.engine["dtype"], order.engine["dtype"])
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    device = "cuda" if order.engine["device"] == "cuda" else "cpu"
    return model.eval().to(device)


def _generate_speed(model: Any, requests: list[BenchRequest]) -> float:
    import torch

    longest = max(request.num_output_tokens for request in requests)
    ids = torch.tensor([request.prompt_token_ids for request in requests], device=model.device)
    started = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=longest,
            min_new_tokens=longest,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
    return sum(request.num_output_tokens for request in requests) / (time.perf_counter() - started)

"""The memory that paging and sharing save, counted in blocks. Runs in the worker process.

The share of memory that is wasted depends on lengths and block size, not on layers or vocabulary. So these experiments
run on one layer of the model, with a small feed-forward part, which allows workloads of realistic length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvplan.bench.figures import Experiment, compare
from kvplan.bench.options import BenchOrder, BenchScale
from kvplan.bench.serving import BenchRequest, exponential_lengths, make_engine, random_prompt, set_up
from kvplan_engine import Engine

_NUM_LAYERS = 1
_FFN_SIZE = 64
_VOCAB_SIZE = 1024
_MAX_MODEL_LEN = 2048
_BLOCK_SIZE = 16
_QUEUE_LENGTH = 64
_SHORTENED = "run with one layer and a small vocabulary: shares of memory depend on neither"


def shortened_config(model: Mapping[str, Any]) -> dict[str, Any]:
    """The model's config with few layers, a small vocabulary, and positions for the longest sequence measured here."""
    config = dict(model)
    for name in ("num_hidden_layers", "n_layer"):
        if name in config:
            config[name] = min(_NUM_LAYERS, config[name])
    config["n_inner" if "n_layer" in config else "intermediate_size"] = _FFN_SIZE
    config["vocab_size"] = min(_VOCAB_SIZE, config["vocab_size"])
    for name in ("max_position_embeddings", "n_positions", "n_ctx"):
        if name in config:
            config[name] = max(_MAX_MODEL_LEN, config[name])
    return config | {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "layer_types": None}


def make_short_engine(order: BenchOrder, **changes: Any) -> Engine:
    """Make an engine for counts, not times: each call of it is a step, whose counts are there when it returns."""
    settings = order.engine | {"model": shortened_config(order.engine["model"]), "load_format": "dummy"}
    settings |= {"max_model_len": _MAX_MODEL_LEN, "block_size": _BLOCK_SIZE, "enable_prefix_caching": False}
    return make_engine(settings | {"async_scheduling": False}, **changes)


# ---- paged against contiguous


class _Occupancy:
    """Per step: share of allocated slots that hold KV, share of the pool that holds KV, running sequences."""

    def __init__(self) -> None:
        self.held: list[float] = []
        self.pool: list[float] = []
        self.sequences: list[int] = []

    def record(self, engine: Engine) -> None:
        stats, size = engine.stats, engine.memory.block_size
        self.held.append(stats.num_used_tokens / (stats.num_used_blocks * size))
        self.pool.append(stats.num_used_tokens / (engine.memory.num_blocks * size))
        self.sequences.append(stats.num_running)


def measure_occupancy(engine: Engine, scale: BenchScale, seed: int) -> _Occupancy:
    """Keep more requests waiting than fit, and observe the pool in its steady state."""
    rng = np.random.default_rng(seed)
    occupancy = _Occupancy()
    num_queued = 0
    for step in range(scale.warm_steps + scale.measured_steps):
        for _ in range(_QUEUE_LENGTH - engine.stats.num_waiting):
            (prompt,) = exponential_lengths(rng, scale.mean_prompt, 1, _MAX_MODEL_LEN // 2)
            (answer,) = exponential_lengths(rng, scale.mean_answer, 1, _MAX_MODEL_LEN // 2)
            request = BenchRequest(random_prompt(rng, engine, prompt), answer)
            engine.add_request(f"r{num_queued}", request.prompt_token_ids, request.params)
            num_queued += 1
        engine.step()
        if step >= scale.warm_steps:
            occupancy.record(engine)
    for number in range(num_queued):
        engine.abort(f"r{number}")
    return occupancy


def reservation(order: BenchOrder, scale: BenchScale) -> Experiment:
    engine = make_short_engine(order, max_num_batched_tokens=2048, max_num_seqs=256)
    num_blocks = scale.num_reserved_sequences * _MAX_MODEL_LEN // _BLOCK_SIZE
    sides: list[_Occupancy] = []
    for mode in ("contiguous", "paged"):
        set_up(engine, num_blocks=num_blocks, kv_reservation=mode)
        sides.append(measure_occupancy(engine, scale, order.seed))
    filled = [[100 * _mean(side.pool)] for side in sides]
    wasted = [[100 - 100 * _mean(side.held)] for side in sides]
    sequences = [[_mean(side.sequences)] for side in sides]
    return Experiment(
        name="reservation",
        title="KV memory: contiguous reservation vs paging",
        baseline="contiguous",
        measured="paged",
        workload=(
            f"pool of {num_blocks * _BLOCK_SIZE:,} tokens, blocks of {_BLOCK_SIZE}, max_model_len {_MAX_MODEL_LEN:,}; "
            f"prompts of {scale.mean_prompt} and answers of {scale.mean_answer} tokens on average, queue never empty, "
            f"mean over {scale.measured_steps} steps"
        ),
        figures=(
            compare("pool filled with KV", "%", *filled, higher_is_better=True),
            compare("held memory without KV", "%", *wasted, higher_is_better=False),
            compare("sequences held", "", *sequences, higher_is_better=True),
        ),
        notes=(_SHORTENED,),
    )


def _mean(values: list[float] | list[int]) -> float:
    return float(np.mean(values))


# ---- samples of one prompt


def measure_sharing(engine: Engine, prompt_token_ids: list[int], num_samples: int) -> tuple[int, int]:
    """Blocks in use when ``num_samples`` answers to a prompt have their first token: as one request, as separate ones.

    ``engine`` must take all prompts in one step (max_num_batched_tokens) and have its prefix cache off.
    """
    together = BenchRequest(prompt_token_ids, 2, num_samples)
    engine.add_request("together", together.prompt_token_ids, together.params)
    engine.step()
    num_shared = engine.stats.num_used_blocks
    engine.abort("together")
    alone = BenchRequest(prompt_token_ids, 2)
    for index in range(num_samples):
        engine.add_request(f"alone-{index}", alone.prompt_token_ids, alone.params)
    engine.step()
    assert engine.stats.num_running == num_samples, "not all prompts fit into one step"
    num_separate = engine.stats.num_used_blocks
    for index in range(num_samples):
        engine.abort(f"alone-{index}")
    return num_shared, num_separate


def sharing(order: BenchOrder, scale: BenchScale) -> Experiment:
    samples, prompt_length = scale.num_samples, scale.prefix_tokens
    engine = make_short_engine(order, max_num_batched_tokens=samples * prompt_length, max_num_seqs=samples)
    prompt = random_prompt(np.random.default_rng(order.seed), engine, prompt_length)
    shared, separate = measure_sharing(engine, prompt, samples)
    return Experiment(
        name="sharing",
        title=f"n={samples} samples of one prompt",
        baseline=f"{samples} requests",
        measured=f"n={samples}",
        workload=f"a prompt of {prompt_length} tokens, blocks of {_BLOCK_SIZE}, prefix cache off",
        figures=(compare("blocks that hold the prompt", "blocks", [separate], [shared], higher_is_better=False),),
        notes=(_SHORTENED,),
    )

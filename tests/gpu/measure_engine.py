"""Measurements of the whole engine: one decode step, and offline throughput, against their rooflines."""

from __future__ import annotations

import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from measure_support import ROOT, Bench, Row

from kvplan_engine import Engine, EngineConfig, SamplingParams

STEP_BATCHES = (1, 16, 64, 256)
STEP_CONTEXT = 1024
STEP_COUNT = 30
STEP_GOAL = 0.80  # floor over time: 1 / 1.25
THROUGHPUT_GOAL = 0.55
DRY_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": 300,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def model_config(bench: Bench, name: str) -> dict[str, Any]:
    """The shipped config of a model, or a tiny one for a dry run."""
    if bench.dry:
        return DRY_CONFIG
    path: Path = ROOT / "profiles" / "models" / f"{name}.json"
    config: dict[str, Any] = json.loads(path.read_text())["config"]
    return config


def make_engine(bench: Bench, name: str, max_num_seqs: int, max_model_len: int) -> Engine:
    """The engine with dummy weights, no prefix caching."""
    return Engine(
        EngineConfig(
            model=model_config(bench, name),
            device="cpu" if bench.dry else "cuda",
            dtype="float32" if bench.dry else "bfloat16",
            load_format="dummy",
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            max_num_batched_tokens=64 if bench.dry else 8192,
            enable_prefix_caching=False,
        )
    )


def kv_bytes_per_token(engine: Engine) -> float:
    return engine.memory.block_bytes / engine.memory.block_size


def measure_decode_step(bench: Bench) -> None:
    """llama-3.1-8b, dummy bfloat16: a step's time against weights plus KV at the copy bandwidth."""
    copy_rate = bench.copy_bytes_per_second()
    context, steps = (20, 3) if bench.dry else (STEP_CONTEXT, STEP_COUNT)
    batches = (2,) if bench.dry else STEP_BATCHES
    engine = make_engine(bench, "llama-3.1-8b", max(batches), context + steps + 16)
    for batch in batches:
        seconds = decode_step_seconds(engine, batch, context, steps)
        moved = engine.memory.weight_bytes + batch * context * kv_bytes_per_token(engine)
        floor = moved / copy_rate
        bench.add(
            Row(
                "engine",
                "decode step, floor over time",
                statistics.median(seconds) * 1e3,
                "ms",
                {"model": "tiny" if bench.dry else "llama-3.1-8b", "batch": batch, "context": context},
                share=floor / statistics.median(seconds),
                reference="weights and KV at copy bandwidth",
                goal=STEP_GOAL,
                median_seconds=statistics.median(seconds),
                samples_seconds=seconds,
            )
        )


def decode_step_seconds(engine: Engine, batch: int, context: int, steps: int) -> list[float]:
    """Seconds of each of the last ``steps`` steps, in which all ``batch`` sequences decode."""
    generator = random.Random(0)
    params = SamplingParams(temperature=0.0, max_tokens=steps + 4, ignore_eos=True)
    vocab_size = engine.model.config.vocab_size
    for number in range(batch):
        prompt = [generator.randrange(vocab_size) for _ in range(context)]
        engine.add_request(f"step-{batch}-{number}", prompt, params)
    seconds = []
    while engine.has_unfinished_requests():
        started = time.perf_counter()
        outputs = engine.step()
        if len(outputs) == batch and not any(output.finished for output in outputs):
            seconds.append(time.perf_counter() - started)
    return seconds[-steps:]


def measure_throughput(bench: Bench) -> None:
    """nano-vllm's workload: 256 requests of 100 to 1,024 tokens in and out, all at once, greedy, no end of sequence."""
    copy_rate = bench.copy_bytes_per_second()
    for name in ("tiny",) if bench.dry else ("qwen3-0.6b", "llama-3.1-8b"):
        measure_throughput_of(bench, name, copy_rate)


def measure_throughput_of(bench: Bench, name: str, copy_rate: float) -> None:
    """One row of offline throughput, against the roofline of KV and weight bytes."""
    count, shortest, longest = (4, 5, 20) if bench.dry else (256, 100, 1024)
    engine = make_engine(bench, name, count, 2 * longest + 16)
    decode_step_seconds(engine, min(count, 16), shortest, 3)  # kernels are compiled and libraries loaded
    generator = random.Random(0)
    lengths = [(generator.randint(shortest, longest), generator.randint(shortest, longest)) for _ in range(count)]
    vocab_size = engine.model.config.vocab_size
    for number, (prompt_len, output_len) in enumerate(lengths):
        prompt = [generator.randrange(vocab_size) for _ in range(prompt_len)]
        params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
        engine.add_request(f"request-{number}", prompt, params)
    started, num_steps = time.perf_counter(), 0
    while engine.has_unfinished_requests():
        engine.step()
        num_steps += 1
    seconds = time.perf_counter() - started
    output_tokens = sum(output_len for _, output_len in lengths)
    kv_tokens = sum(out * prompt + out * (out + 1) // 2 for prompt, out in lengths)
    fewest_steps = max(output_len for _, output_len in lengths)
    moved = kv_tokens * kv_bytes_per_token(engine) + fewest_steps * engine.memory.weight_bytes
    bench.add(
        Row(
            "engine",
            "offline throughput",
            output_tokens / seconds,
            "output tokens/s",
            {"model": name, "requests": count, "steps": num_steps, "preemptions": engine.stats.num_preemptions},
            share=moved / copy_rate / seconds,
            reference="KV and weights at copy bandwidth",
            goal=THROUGHPUT_GOAL,
            median_seconds=seconds,
            excluded="loading; the prompts' computation is in the time and not in the roofline",
        )
    )


LADDER_MODES = {
    "eager": {"enforce_eager": True, "async_scheduling": False},
    "graphs": {"enforce_eager": False, "async_scheduling": False},
    "graphs, one step ahead": {"enforce_eager": False, "async_scheduling": True},
}


def measure_ladder(bench: Bench) -> None:
    """What graphs and overlap each bring to a decode step, on a small model, where launching costs most."""
    name, context, steps = ("tiny", 20, 3) if bench.dry else ("qwen3-0.6b", STEP_CONTEXT, STEP_COUNT)
    batches = (2,) if bench.dry else STEP_BATCHES
    engine = make_engine(bench, name, max(batches), context + steps + 16)
    eager: dict[int, float] = {}
    for mode, settings in LADDER_MODES.items():
        engine.reconfigure(**settings)
        for batch in batches:
            seconds = decode_step_seconds(engine, batch, context, steps)
            median = statistics.median(seconds)
            eager.setdefault(batch, median)
            bench.add(
                Row(
                    "engine",
                    f"decode step, {mode}",
                    median * 1e3,
                    "ms",
                    {"model": name, "batch": batch, "context": context, "graph_bytes": engine.memory.graph_bytes},
                    share=eager[batch] / median,
                    reference="the eager step of the same batch",
                    median_seconds=median,
                    samples_seconds=seconds,
                )
            )

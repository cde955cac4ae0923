"""transformers' continuous batching beside the engine: the same model shape, prompts and lengths on the same device."""

from __future__ import annotations

import gc
import random
import time
from typing import Any

import torch
import transformers

from kvplan_engine import SamplingParams
from kvplan_engine.measuring.engine import make_engine, model_config
from kvplan_engine.measuring.support import Bench

MODELS = {"qwen3-0.6b": (256, 128), "llama-3.1-8b": (64, 64)}
"""Requests and output tokens of each, so that both fit the section's time."""
GOAL = 3.0


def measure_baseline(bench: Bench) -> None:
    """Output tokens per second of both, one after the other, for each model."""
    for model, (count, output_len) in {"tiny": (3, 4)}.items() if bench.dry else MODELS.items():
        measure_baseline_of(bench, model, count, output_len)


def measure_baseline_of(bench: Bench, model: str, count: int, output_len: int) -> None:
    """transformers wants one output length for all."""
    shortest, longest = (5, 12) if bench.dry else (100, 1024)
    generator = random.Random(0)
    vocab_size = model_config(bench, model)["vocab_size"]
    lengths = [generator.randint(shortest, longest) for _ in range(count)]
    prompts = [[generator.randrange(vocab_size) for _ in range(length)] for length in lengths]
    theirs = transformers_seconds(bench, model, prompts, output_len)
    gc.collect()  # their model, before ours is loaded
    bench.release_memory()
    ours = engine_seconds(bench, model, prompts, output_len)
    shape = {"model": model, "requests": count, "output_len": output_len}
    tokens = count * output_len
    theirs_name = f"transformers {transformers.__version__} continuous batching"
    bench.add("baseline", theirs_name, tokens / theirs, "output tokens/s", shape, median_seconds=theirs)
    bench.add(
        "baseline",
        "engine on the same workload",
        tokens / ours,
        "output tokens/s",
        shape,
        share=theirs / ours,
        reference=theirs_name,
        goal=GOAL,
        median_seconds=ours,
        excluded="loading, what either sets up before the first request, and a first small batch",
    )


def transformers_seconds(bench: Bench, name: str, prompts: list[list[int]], output_len: int) -> float:
    """From the first request's arrival to the last one's end, in generate_batch: what it sets up before is left out.

    Random weights, torch's own attention, greedy, no end of sequence.
    """
    config = dict(model_config(bench, name))
    config.pop("torch_dtype", None)
    with bench.device:  # weights are made where they are used: on a CPU eight billion random numbers take minutes
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(config.pop("model_type"), **config),
            dtype=torch.float32 if bench.dry else torch.bfloat16,
            attn_implementation="sdpa",
        )
    model = model.to(bench.device).eval()
    small: dict[str, Any] = {"num_blocks": 16, "max_batch_tokens": 32} if bench.dry else {}
    batching = transformers.ContinuousBatchingConfig(**small)

    def generate(inputs: list[list[int]], count: int) -> float:
        settings = transformers.GenerationConfig(max_new_tokens=count, eos_token_id=-1, pad_token_id=0, do_sample=False)
        gc.collect()  # the cache of the batch before, or this one takes what that one left
        bench.release_memory()
        outputs = model.generate_batch(
            inputs=inputs, generation_config=settings, continuous_batching_config=batching, progress_bar=False
        )
        lengths = {len(output.generated_tokens) for output in outputs.values()}
        if len(outputs) != len(inputs) or lengths != {count}:
            raise RuntimeError(f"transformers made {len(outputs)} outputs of lengths {lengths}, wanted {count}")
        arrived = min(output.created_time for output in outputs.values())
        return max(output.lifespan[1] for output in outputs.values()) - arrived

    generate(prompts[:2], 2)
    return generate(prompts, output_len)


def engine_seconds(bench: Bench, name: str, prompts: list[list[int]], output_len: int) -> float:
    """Wall time of the engine for the same prompts."""
    longest = max(map(len, prompts))
    engine = make_engine(bench, name, len(prompts), longest + output_len + 16)

    def run(inputs: list[list[int]], count: int, name: str) -> float:
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        for number, prompt in enumerate(inputs):
            engine.add_request(f"{name}-{number}", prompt, params)
        started = time.perf_counter()
        while engine.has_unfinished_requests():
            engine.step()
        return time.perf_counter() - started

    run(prompts[:2], 2, "first")
    seconds = run(prompts, output_len, "request")
    engine.close()
    bench.release_memory()
    return seconds

"""transformers' continuous batching beside the engine: the same model shape, prompts and lengths on the same device."""

from __future__ import annotations

import random
import time

import torch
import transformers
from measure_engine import make_engine, model_config
from measure_support import Bench, Row

from kvplan_engine import SamplingParams

MODEL = "qwen3-0.6b"
GOAL = 3.0


def measure_baseline(bench: Bench) -> None:
    """Output tokens per second of both, one after the other; transformers wants one output length for all."""
    count, shortest, longest, output_len = (3, 5, 12, 4) if bench.dry else (256, 100, 1024, 128)
    generator = random.Random(0)
    vocab_size = model_config(bench, MODEL)["vocab_size"]
    lengths = [generator.randint(shortest, longest) for _ in range(count)]
    prompts = [[generator.randrange(vocab_size) for _ in range(length)] for length in lengths]
    theirs = transformers_seconds(bench, prompts, output_len)
    ours = engine_seconds(bench, prompts, output_len)
    shape = {"model": "tiny" if bench.dry else MODEL, "requests": count, "output_len": output_len}
    tokens = count * output_len
    theirs_name = f"transformers {transformers.__version__} continuous batching"
    bench.add(Row("baseline", theirs_name, tokens / theirs, "output tokens/s", shape, median_seconds=theirs))
    bench.add(
        Row(
            "baseline",
            "engine on the same workload",
            tokens / ours,
            "output tokens/s",
            shape,
            share=theirs / ours,
            reference=theirs_name,
            goal=GOAL,
            median_seconds=ours,
            excluded="loading and a first small batch",
        )
    )


def transformers_seconds(bench: Bench, prompts: list[list[int]], output_len: int) -> float:
    """Wall time of generate_batch with random weights, torch's own attention, greedy, no end of sequence."""
    config = dict(model_config(bench, MODEL))
    config.pop("torch_dtype", None)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(config.pop("model_type"), **config),
        dtype=torch.float32 if bench.dry else torch.bfloat16,
        attn_implementation="sdpa",
    )
    model = model.to(bench.device).eval()
    small = {"num_blocks": 16, "max_batch_tokens": 32} if bench.dry else {}
    batching = transformers.ContinuousBatchingConfig(**small)

    def generate(inputs: list[list[int]], count: int) -> float:
        settings = transformers.GenerationConfig(max_new_tokens=count, eos_token_id=-1, pad_token_id=0, do_sample=False)
        started = time.perf_counter()
        outputs = model.generate_batch(
            inputs=inputs, generation_config=settings, continuous_batching_config=batching, progress_bar=False
        )
        seconds = time.perf_counter() - started
        lengths = {len(output.generated_tokens) for output in outputs.values()}
        if len(outputs) != len(inputs) or lengths != {count}:
            raise RuntimeError(f"transformers made {len(outputs)} outputs of lengths {lengths}, wanted {count}")
        return seconds

    generate(prompts[:2], 2)
    return generate(prompts, output_len)


def engine_seconds(bench: Bench, prompts: list[list[int]], output_len: int) -> float:
    """Wall time of the engine for the same prompts."""
    longest = max(map(len, prompts))
    engine = make_engine(bench, MODEL, len(prompts), longest + output_len + 16)

    def run(inputs: list[list[int]], count: int, name: str) -> float:
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        for number, prompt in enumerate(inputs):
            engine.add_request(f"{name}-{number}", prompt, params)
        started = time.perf_counter()
        while engine.has_unfinished_requests():
            engine.step()
        return time.perf_counter() - started

    run(prompts[:2], 2, "first")
    return run(prompts, output_len, "request")

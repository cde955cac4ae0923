"""Measurements of the whole engine: one decode step, and offline throughput, against their rooflines."""

from __future__ import annotations

import json
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from kvplan_engine import Engine, EngineConfig, SamplingParams
from kvplan_engine.measuring.support import Bench
from kvplan_engine.models.loaded_model import LoadedModel
from kvplan_engine.paths import model_profile_folders

STEP_BATCHES = (1, 16, 64, 256)
STEP_CONTEXT = 1024
STEP_COUNT = 30
STEP_GOAL = 1 / 1.1  # floor over time
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
    paths = (folder / f"{name}.json" for folder in model_profile_folders())
    path = next(path for path in paths if path.is_file())
    config: dict[str, Any] = json.loads(path.read_text())["config"]
    return config


def make_engine(bench: Bench, name: str, max_num_seqs: int, max_model_len: int, linear_backend: str = "auto") -> Engine:
    """The engine with dummy weights, no prefix caching; a dry run has no GPU whose products could be other ones."""
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
            linear_backend="auto" if bench.dry else linear_backend,
        )
    )


def kv_bytes_per_token(engine: Engine) -> float:
    return engine.memory.block_bytes / engine.memory.block_size


def weight_bytes_read(engine: Engine) -> int:
    """Bytes of weights that a decode step reads: all but the embedding, of which it takes a row for each token.

    One that is the output head too is read whole.
    """
    assert isinstance(engine.model, LoadedModel)
    weights = engine.model.weights
    return engine.memory.weight_bytes - (weights["embedding"].nbytes if "head" in weights else 0)


def filling_steps(batch: int, context: int, max_num_batched_tokens: int) -> int:
    """Steps until the last of ``batch`` prompts of ``context`` tokens is computed, while the first ones decode."""
    return -(-batch * context // (max_num_batched_tokens - batch)) + 1


def length_limit(bench: Bench, batches: tuple[int, ...], context: int, steps: int) -> int:
    """The longest sequence of ``decode_steps`` over these batches."""
    budget = 64 if bench.dry else 8192
    return context + steps + max(filling_steps(batch, context, budget) for batch in batches) + 16


@dataclass(slots=True)
class DecodeSteps:
    """Steps in which every sequence decoded. kv_tokens: what each of them attended over, all sequences together."""

    seconds: list[float] = field(default_factory=list)
    kv_tokens: list[int] = field(default_factory=list)

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)

    @property
    def mean_kv_tokens(self) -> float:
        return statistics.fmean(self.kv_tokens)


def measure_decode_step(bench: Bench) -> None:
    """llama-3.1-8b, dummy bfloat16: a step's time against weights plus KV at the device's best bandwidth."""
    rate = max(bench.copy_bytes_per_second(), bench.read_bytes_per_second())
    context, steps = (20, 3) if bench.dry else (STEP_CONTEXT, STEP_COUNT)
    batches = (2,) if bench.dry else STEP_BATCHES
    with make_engine(bench, "llama-3.1-8b", max(batches), length_limit(bench, batches, context, steps)) as engine:
        for batch in batches:
            measured = decode_steps(engine, batch, context, steps)
            moved = weight_bytes_read(engine) + measured.mean_kv_tokens * kv_bytes_per_token(engine)
            name, mean = "tiny" if bench.dry else "llama-3.1-8b", round(measured.mean_kv_tokens / batch)
            bench.add_step(
                "decode step, floor over time",
                {"model": name, "batch": batch, "context": mean},
                measured.seconds,
                moved / rate,
                reference="weights and KV at the best bandwidth",
                goal=STEP_GOAL,
                excluded="rows of the embedding, activations",
            )


GREEDY = {"temperature": 0.0}


def add_sequences(engine: Engine, batch: int, context: int, steps: int, sampling: dict[str, float]) -> None:
    """``batch`` prompts of ``context`` tokens that all decode together for ``steps`` steps at least.

    Prompts are computed some in a step: the first sequences decode until the last one does, and ``steps`` more.
    """
    generator = random.Random(0)
    max_tokens = steps + 4 + filling_steps(batch, context, engine.config.max_num_batched_tokens)
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **sampling)  # type: ignore[arg-type]
    vocab_size = engine.model.config.vocab_size
    for number in range(batch):
        prompt = [generator.randrange(vocab_size) for _ in range(context)]
        engine.add_request(f"step-{batch}-{number}", prompt, params)


def decode_steps(
    engine: Engine, batch: int, context: int, steps: int, sampling: dict[str, float] = GREEDY
) -> DecodeSteps:
    """The last ``steps`` steps in which all of ``batch`` sequences decode, with ``context`` tokens or a few more."""
    add_sequences(engine, batch, context, steps, sampling)
    seen = DecodeSteps()
    while engine.has_unfinished_requests():
        started = time.perf_counter()
        outputs = engine.step()
        if len(outputs) == batch and not any(output.finished for output in outputs):
            seen.seconds.append(time.perf_counter() - started)
            seen.kv_tokens.append(engine.stats.num_running_tokens)
    if len(seen.seconds) < steps:
        raise RuntimeError(f"of {batch} sequences all decoded in {len(seen.seconds)} steps only, wanted {steps}")
    return DecodeSteps(seen.seconds[-steps:], seen.kv_tokens[-steps:])


def measure_throughput(bench: Bench) -> None:
    """nano-vllm's workload: 256 requests of 100 to 1,024 tokens in and out, all at once, greedy, no end of sequence."""
    rate = max(bench.copy_bytes_per_second(), bench.read_bytes_per_second())
    for name in ("tiny",) if bench.dry else ("qwen3-0.6b", "llama-3.1-8b"):
        count, longest = (4, 20) if bench.dry else (256, 1024)
        with make_engine(bench, name, count, 2 * longest + 16) as engine:
            measure_throughput_of(bench, engine, name, rate)


def measure_throughput_of(bench: Bench, engine: Engine, name: str, rate: float) -> None:
    """One row of offline throughput, against the roofline of KV and weight bytes."""
    count, shortest, longest = (4, 5, 20) if bench.dry else (256, 100, 1024)
    decode_steps(engine, min(count, 16), shortest, 3)  # kernels are compiled and libraries loaded
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
    moved = kv_tokens * kv_bytes_per_token(engine) + fewest_steps * weight_bytes_read(engine)
    shape = {"model": name, "requests": count, "steps": num_steps, "preemptions": engine.stats.num_preemptions}
    bench.add(
        "engine",
        "offline throughput",
        output_tokens / seconds,
        "output tokens/s",
        shape,
        share=moved / rate / seconds,
        reference="KV and weights at the best bandwidth",
        goal=THROUGHPUT_GOAL,
        median_seconds=seconds,
        excluded="loading; the prompts' computation is in the time and not in the roofline",
    )

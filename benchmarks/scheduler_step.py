"""What a step costs in Python beside the model: 256 decoding sequences, at several lengths.

    python benchmarks/scheduler_step.py [--sequences 256] [--lengths 64 1024 4096] [--steps 400] [--caching off]
    python benchmarks/scheduler_step.py --model gemma-3-27b --lengths 300 1500

The whole of ``Engine.step`` runs, with the smallest model there is and its forward pass left out. Medians over the
steps, in microseconds:

    schedule   who runs, which blocks they take; full blocks hashed for the prefix cache
    inputs     the step's index buffers: token ids, positions, slots, block tables, lengths, and the tensors over them
    commit     counts moved on
    take       tokens appended, ends checked, outputs made ready (the output objects themselves are made when looked at)
    rest       statistics, times, the engine's own calls
    all        the whole step, timed in other steps than its parts, because these timings take time too

Left out: the forward pass, and the choice of tokens from the logits with their way to a list ("sample", beside it).
Blocks of 16 tokens: in every step one sequence in 16 fills a block and takes another. In the last line sequences come
and go: each has an answer of another length, and in a typical step three of them end and three others start.

With ``--model`` the pool has that model's layout and room for all sequences, but nothing has tensors (``load_format``
"none"): there are no inputs, and a token is a random number.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

import torch

from kvplan_engine import Engine, EngineConfig, SamplingParams

GOAL_MICROSECONDS, LIMIT_MICROSECONDS = 60, 150
COLUMNS = ("schedule", "inputs", "commit", "take", "rest", "all", "sample")
VOCAB_SIZE = 32


def make_engine(model: str | None, max_model_len: int, num_sequences: int, caching: bool) -> Engine:
    """The smallest model there is, or ``model`` without tensors, with a pool for all sequences at their longest."""
    if model is not None:
        return make_counted_engine(model, max_model_len, num_sequences, caching)
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 8,
        "n_head": 1,
        "n_layer": 1,
        "vocab_size": VOCAB_SIZE,
        "n_positions": max_model_len,
    }
    block_bytes = 2 * 16 * 8 * 4
    device_memory = 2 * (num_sequences * (max_model_len // 16 + 2) * block_bytes) + (256 << 20)
    settings: dict[str, Any] = {"dtype": "float32", "load_format": "dummy", "device": "cpu"}
    settings |= {"device_memory": device_memory, "max_num_seqs": num_sequences, "enable_prefix_caching": caching}
    return Engine(EngineConfig(model=config, max_num_batched_tokens=4096, **settings))


def make_counted_engine(model: str, max_model_len: int, num_sequences: int, caching: bool) -> Engine:
    """``model`` without tensors, on a device with room for its weights and all sequences at their longest."""
    settings: dict[str, Any] = {"load_format": "none", "device": "cpu", "max_num_seqs": num_sequences}
    settings |= {"max_model_len": max_model_len, "enable_prefix_caching": caching, "max_num_batched_tokens": 4096}
    roomy = Engine(EngineConfig(model=model, device_memory=1 << 42, **settings))
    memory, layout = roomy.memory, roomy.scheduler.pool.layout
    pool_bytes = num_sequences * layout.blocks_for(max_model_len, 4096) * layout.block_bytes
    taken = memory.weight_bytes + memory.activation_bytes + memory.overhead_bytes
    return Engine(EngineConfig(model=model, device_memory=int((taken + pool_bytes) * 1.2), **settings))


class Stopwatch:
    """Times calls of methods, by name; ``take`` returns what has come together since the last time."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self.is_on = True

    def watch(self, owner: Any, method: str, name: str, always: bool = False) -> None:
        """Time ``owner.method``; what is not ``always`` timed is left alone while the watch is off."""
        function: Callable[..., Any] = getattr(owner, method)

        def timed(*arguments: Any) -> Any:
            if not (self.is_on or always):
                return function(*arguments)
            started = time.perf_counter()
            result = function(*arguments)
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started
            return result

        setattr(owner, method, timed)

    def take(self) -> dict[str, float]:
        taken, self._seconds = self._seconds, {}
        return taken


def without_model(engine: Engine) -> Stopwatch:
    """Leave the forward pass of ``engine`` out, and time the parts of its steps."""
    logits = torch.zeros(engine.config.max_num_seqs, VOCAB_SIZE)
    watch, runner = Stopwatch(), engine.serving.runner
    if not engine.config.is_counted:
        runner.forward = lambda batch: logits[: len(batch.sampled)]  # type: ignore[method-assign]
    watch.watch(runner, "forward", "forward", always=True)
    watch.watch(runner, "prepare", "inputs")
    watch.watch(runner.sampler, "sample_step", "sample", always=True)
    watch.watch(engine.scheduler, "schedule", "schedule")
    watch.watch(engine.scheduler, "commit", "commit")
    watch.watch(engine.serving.output_processor, "take", "take")
    return watch


def run_steps(engine: Engine, watch: Stopwatch, num_steps: int, after_step: Callable[[Any], None]) -> dict[str, float]:
    """Medians in microseconds over ``num_steps`` steps; parts are timed in half of them."""
    samples: dict[str, list[float]] = {name: [] for name in COLUMNS}
    watch.take()
    gc.collect()
    gc.disable()
    for number in range(num_steps):
        watch.is_on = number // 16 % 2 == 1
        started = time.perf_counter()
        outputs = engine.step()
        seconds = time.perf_counter() - started
        row = watch.take()
        row["all"] = seconds - row.pop("forward") - row["sample"]
        if watch.is_on:
            row["rest"] = row.pop("all") - sum(row[name] for name in ("schedule", "inputs", "commit", "take"))
        for name, value in row.items():
            samples[name].append(value)
        after_step(outputs)
    gc.enable()
    return {name: statistics.median(values) * 1e6 for name, values in samples.items()}


def measure_decoding(
    model: str | None, length: int, num_sequences: int, num_steps: int, caching: bool
) -> dict[str, float]:
    """Sequences of ``length`` tokens or, the first to start, some more; none of them ends."""
    num_more = num_steps + num_sequences + 60
    engine = make_engine(model, length + num_more, num_sequences, caching)
    params = SamplingParams(temperature=0.0, max_tokens=num_more, ignore_eos=True)
    watch = without_model(engine)
    for number in range(num_sequences):
        engine.add_request(str(number), [number % VOCAB_SIZE, *[1] * (length - 1)], params)
        while engine.scheduler.waiting:  # one in each step, which spreads the borders of blocks over the steps
            engine.step()
    engine.step()
    result = run_steps(engine, watch, num_steps, lambda outputs: None)
    assert engine.stats.num_scheduled_tokens == num_sequences
    return result


def measure_turnover(model: str | None, num_sequences: int, num_steps: int, caching: bool) -> dict[str, float]:
    """Answers of 32 to 130 tokens; each that ends is followed by another request."""
    engine = make_engine(model, 1024, num_sequences, caching)
    watch, number = without_model(engine), 0

    def add() -> None:
        nonlocal number
        number += 1
        params = SamplingParams(temperature=0.0, max_tokens=32 + number * 37 % 99, ignore_eos=True)
        engine.add_request(str(number), [number % VOCAB_SIZE] * (number % 16 + 8), params)

    def replace_ended(outputs: Any) -> None:
        for _ in range(num_sequences - engine.stats.num_running + sum(output.finished for output in outputs)):
            add()

    for _ in range(num_sequences):
        add()
    for _ in range(150):
        replace_ended(engine.step())
    return run_steps(engine, watch, num_steps, replace_ended)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a profile, whose layout is taken; no tensors")
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 1024, 4096])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--caching", choices=("on", "off"), default="on")
    arguments = parser.parse_args()
    number, caching = arguments.sequences, arguments.caching == "on"
    print(f"{number} decoding sequences, prefix caching {arguments.caching}, medians in microseconds")
    print(f"{'tokens each':>12}" + "".join(f"{name:>10}" for name in COLUMNS))
    for length in arguments.lengths:
        result = measure_decoding(arguments.model, length, number, arguments.steps, caching)
        print(f"{length:>12,}" + "".join(f"{result[name]:>10.1f}" for name in COLUMNS))
    result = measure_turnover(arguments.model, number, arguments.steps, caching)
    print(f"{'come and go':>12}" + "".join(f"{result[name]:>10.1f}" for name in COLUMNS))
    print(f"all: goal {GOAL_MICROSECONDS}, limit {LIMIT_MICROSECONDS}")


if __name__ == "__main__":
    main()

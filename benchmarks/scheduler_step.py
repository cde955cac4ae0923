"""What a step costs in Python beside the model: 256 decoding sequences, at several lengths.

    python benchmarks/scheduler_step.py [--sequences 256] [--lengths 64 1024 4096] [--steps 400] [--caching off]

A stub stands in for the model, the batch's tensors and the sampler. Printed are medians over the steps, in
microseconds: schedule() and commit() of the scheduler, the engine's bookkeeping (tokens appended, ends checked,
statistics), and all three. Not timed: batch tensors, forward pass, sampling, and the output objects, which are made
when somebody looks at them (about 0.3 microseconds each). Blocks of 16 tokens: in every step one sequence in 16 takes
a new block and fills one.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

from kvplan_engine import Engine, EngineConfig, SamplingParams
from kvplan_engine.sampling.sampler import Draw, SampledToken
from kvplan_engine.step_plan import StepPlan

GOAL_MICROSECONDS, LIMIT_MICROSECONDS = 60, 150


def make_engine(max_model_len: int, num_sequences: int, caching: bool) -> Engine:
    """The smallest model there is, with a pool for all sequences at their longest."""
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 8,
        "n_head": 1,
        "n_layer": 1,
        "vocab_size": 32,
        "n_positions": max_model_len,
    }
    block_bytes = 2 * 16 * 8 * 4
    device_memory = 2 * (num_sequences * (max_model_len // 16 + 2) * block_bytes) + (256 << 20)
    settings: dict[str, Any] = {"dtype": "float32", "load_format": "dummy", "device": "cpu"}
    settings |= {"device_memory": device_memory, "max_num_seqs": num_sequences, "enable_prefix_caching": caching}
    return Engine(EngineConfig(model=config, max_num_batched_tokens=4096, **settings))


class StubRunner:
    """Answers a plan at once: every sequence that can be sampled gets token 1."""

    def __init__(self) -> None:
        self.sampler = self

    def prepare(self, plan: StepPlan) -> Any:
        self.stub_seconds = -time.perf_counter()
        batch = SimpleNamespace(sampled=[item.sequence for item in plan.scheduled if item.needs_sampling])
        self.stub_seconds += time.perf_counter()
        return batch

    def forward(self, batch: Any) -> None:
        return None

    def sample(self, logits: None, draws: list[Draw], *stops: Any) -> list[SampledToken]:
        started = time.perf_counter()
        tokens = [SampledToken(1)] * len(draws)
        self.stub_seconds += time.perf_counter() - started
        return tokens


def timed(function: Any, seconds: list[float]) -> Any:
    def call(*arguments: Any) -> Any:
        started = time.perf_counter()
        result = function(*arguments)
        seconds.append(time.perf_counter() - started)
        return result

    return call


def measure(length: int, num_sequences: int, num_steps: int, caching: bool) -> dict[str, float]:
    """Medians in microseconds, with sequences of ``length`` tokens at the start."""
    engine = make_engine(length + num_steps + 64, num_sequences, caching)
    runner = StubRunner()
    engine._runner = runner  # type: ignore[assignment]
    params = SamplingParams(temperature=0.0, max_tokens=num_steps + 60, ignore_eos=True)
    for number in range(num_sequences):
        prompt = [number % 32] * (length - number % 16)  # block boundaries are spread over the steps
        engine.add_request(str(number), prompt, params)
    engine.scheduler.max_num_batched_tokens = num_sequences * length  # all prompts in one step: nothing computes them
    while engine.stats.num_scheduled_tokens != num_sequences:
        engine.step()
    seconds: dict[str, list[float]] = {"schedule": [], "commit": [], "step": []}
    engine.scheduler.schedule = timed(engine.scheduler.schedule, seconds["schedule"])  # type: ignore[method-assign]
    engine.scheduler.commit = timed(engine.scheduler.commit, seconds["commit"])  # type: ignore[method-assign]
    gc.disable()
    for _ in range(num_steps):
        started = time.perf_counter()
        engine.step()
        seconds["step"].append(time.perf_counter() - started - runner.stub_seconds)
    gc.enable()
    assert engine.stats.num_scheduled_tokens == num_sequences
    median = {name: statistics.median(values) * 1e6 for name, values in seconds.items()}
    return {**median, "bookkeeping": median["step"] - median["schedule"] - median["commit"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 1024, 4096])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--caching", choices=("on", "off"), default="on")
    arguments = parser.parse_args()
    print(f"{arguments.sequences} decoding sequences, prefix caching {arguments.caching}, medians in microseconds")
    print(f"{'tokens each':>12} {'schedule':>9} {'commit':>9} {'bookkeeping':>12} {'all':>9}")
    for length in arguments.lengths:
        result = measure(length, arguments.sequences, arguments.steps, arguments.caching == "on")
        columns = (result["schedule"], result["commit"], result["bookkeeping"], result["step"])
        print(
            f"{length:>12,} "
            + " ".join(f"{value:>{width}.1f}" for value, width in zip(columns, (9, 9, 12, 9), strict=True))
        )
    print(f"goal {GOAL_MICROSECONDS}, limit {LIMIT_MICROSECONDS}")


if __name__ == "__main__":
    main()

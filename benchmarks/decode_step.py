"""Where the time of an engine's step goes on the CPU, part by part, each beside what the machine could do at best.

    python benchmarks/decode_step.py [--model gpt2-124m|llama-135m] [--dtype float32|bfloat16] [--batch 64]
    python benchmarks/decode_step.py --curve          tokens/s at batches 1 to 128, with 1 thread and with all

A part's floor is the larger of its bytes at the read bandwidth and its operations at the peak rate, both measured here
first. Parts are timed in the decoder's own loop over the layers; "one call" is the step as the engine runs it. Every
figure is the best of its repetitions: on a busy machine give the command priority (``chrt -f 10``).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

from kvplan_engine import Engine, EngineConfig, SamplingParams  # before torch, whose threads it sets
from kvplan_engine.description.parameters import model_parameters
from kvplan_engine.kernels.cpu.library import cpu_kernels
from kvplan_engine.kernels.cpu.packed import PackedWeight

import torch  # isort: skip

MODELS = {"gpt2-124m": "gpt2", "llama-135m": "smollm2-135m"}
"""Profiles, whose weights are made up."""
CONTEXT_TOKENS = 160
CURVE_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
CURVE_ROUNDS = 11
Times = dict[str, float]
Work = dict[str, tuple[int, int]]


def best_seconds(action: Callable[[], object], repeat: int) -> float:
    """Of ``repeat`` runs, after one that is not counted."""
    action()
    best = float("inf")
    for _ in range(repeat):
        started = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - started)
    return best


READ_BYTES = 512 * 1024**2
READ_INPUTS = 2048


def _packed(weight: torch.Tensor) -> PackedWeight:
    kernels = cpu_kernels()
    assert kernels is not None, "this benchmark measures the compiled kernels"
    return PackedWeight(kernels, weight)


@cache
def _read_weight(dtype: str) -> PackedWeight:
    """READ_BYTES of weights in ``dtype``, packed as the engine's are."""
    kind = getattr(torch, dtype)
    return _packed(torch.ones(READ_BYTES // READ_INPUTS // kind.itemsize, READ_INPUTS, dtype=kind))


def torch_bandwidth() -> float:
    """Bytes per second of reading READ_BYTES by torch, in order."""
    source = torch.ones(READ_BYTES // 4)
    return READ_BYTES / best_seconds(source.sum, 3)


def weights_bandwidth(dtype: str) -> float:
    """The same as weights of ``dtype`` that are multiplied with one row."""
    weight, kind = _read_weight(dtype), getattr(torch, dtype)
    x = torch.ones(1, READ_INPUTS, dtype=kind)
    out = torch.empty(1, READ_BYTES // READ_INPUTS // kind.itemsize, dtype=kind)
    return READ_BYTES / best_seconds(lambda: weight(x, out), 3)


def read_bandwidth(dtype: str = "float32") -> float:
    """The faster of the two."""
    return max(torch_bandwidth(), weights_bandwidth(dtype))


def peak_rate(dtype: str) -> float:
    """Operations per second of products in ``dtype``: of ours on operands that stay in the caches, of torch's on large
    ones; the faster."""
    kind = getattr(torch, dtype)
    packed = _packed(torch.randn(512, 256).to(kind))
    x, out = torch.randn(192, 256).to(kind), torch.empty(192, 512, dtype=kind)
    square = torch.randn(1024, 1024).to(kind)
    return max(
        2 * 192 * 256 * 512 / best_seconds(lambda: packed(x, out), 50),
        2 * 1024**3 / best_seconds(lambda: square @ square, 4),
    )


class PartTimer:
    """Seconds by part of the decoder's loop, by wrapping what it calls."""

    def __init__(self, engine: Engine) -> None:
        self.seconds: Times = defaultdict(float)
        self._decoder = engine.model.decoder
        for layer in self._decoder._layers:
            for part, names in ((layer.attention, ("qkv", "output")), (layer.feed_forward, ("up", "down"))):
                for name in names:
                    self._wrap_projection(part, name)
            layer.attention._backend = _Timed(self, None, layer.attention._backend)
            layer.feed_forward._activation = self.timed("activation", layer.feed_forward._activation)
            for name in ("attention_norm", "mlp_norm"):
                setattr(layer, name, _Timed(self, "norms", getattr(layer, name)))
        self._decoder._final_norm = _Timed(self, "norms", self._decoder._final_norm)
        self._decoder._logits = self.timed("head", self._decoder._logits)
        self._decoder._embed = self.timed("embedding", self._decoder._embed)

    def _wrap_projection(self, part: Any, name: str) -> None:
        projection = getattr(part, name)
        setattr(part, name, _Timed(self, f"product {name}", projection))

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            started = time.perf_counter()
            result = function(*args)
            self.seconds[part] += time.perf_counter() - started
            return result

        return run


class _Timed:
    """Stands in for ``target``; its calls count for ``part``, or for the method's own name."""

    def __init__(self, timer: PartTimer, part: str | None, target: Any) -> None:
        self._timer, self._part, self._target = timer, part, target

    def __call__(self, *args: Any) -> None:
        self._timer.timed(str(self._part), self._target)(*args)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        return self._timer.timed(self._part or name, value) if callable(value) else value


def make_engine(model: str, dtype: str, batch: int) -> Engine:
    config = EngineConfig(
        model=MODELS[model],
        device="cpu",
        dtype=dtype,
        load_format="dummy",
        device_memory=6 * 1024**3,
        max_model_len=1024,
        max_num_seqs=batch,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
    )
    engine = Engine(config)
    engine.touch_pool()  # as before a server's first request: else a step in sixteen waits for the system's memory
    return engine


def fill(engine: Engine, batch: int) -> float:
    """Start ``batch`` requests and prefill them. Seconds per token of the largest step."""
    params = SamplingParams(temperature=0.0, max_tokens=800, min_tokens=800, ignore_eos=True)
    for index in range(batch):
        engine.add_request(str(index), [(index * 997 + i * 31) % 40000 for i in range(CONTEXT_TOKENS)], params)
    most_tokens, seconds = 0, 0.0
    for _ in range(-(-batch * CONTEXT_TOKENS // 2048) + 1):
        started = time.perf_counter()
        engine.step()
        if engine.stats.num_scheduled_tokens > most_tokens:
            most_tokens, seconds = engine.stats.num_scheduled_tokens, time.perf_counter() - started
    return seconds / most_tokens


def work(engine: Engine, batch: int) -> Work:
    """Bytes that each part reads at least, and its operations."""
    model = engine.model.config
    size = torch.empty(0, dtype=getattr(torch, engine.model.dtype)).element_size()
    weights = {"head": model.vocab_size * model.hidden_size}
    for part in ("qkv", "output", "up", "down"):
        matrices = [each for each in model_parameters(model) if each.part == part and each.kind == "matrix"]
        weights[f"product {part}"] = sum(each.num_elements for each in matrices)
    kv_bytes = engine.stats.num_used_tokens * engine.memory.block_bytes // engine.memory.block_size
    return {part: (count * size, 2 * count * batch) for part, count in weights.items()} | {"attend": (kv_bytes, 0)}


def floors(parts: Work, bandwidth: float, rate: float) -> Times:
    """Seconds that each part takes at least: bytes read at ``bandwidth``, operations at ``rate``."""
    return {part: max(num_bytes / bandwidth, operations / rate) for part, (num_bytes, operations) in parts.items()}


def profile(model: str, dtype: str, batch: int) -> None:
    bandwidth, rate = read_bandwidth(dtype), peak_rate(dtype)
    print(f"{torch.get_num_threads()} threads, {bandwidth / 1e9:.1f} GB/s read, {rate / 1e9:.0f} GFLOP/s {dtype}")
    engine = make_engine(model, dtype, batch)
    per_token = fill(engine, batch)
    one_call = best_seconds(engine.step, 10)
    engine.model.decoder.layer_run = None
    timer = PartTimer(engine)
    engine.serving.runner.forward = timer.timed("forward", engine.serving.runner.forward)  # type: ignore[method-assign]
    best, parts = float("inf"), dict[str, float]()
    for _ in range(10):
        timer.seconds.clear()
        started = time.perf_counter()
        engine.step()
        total = time.perf_counter() - started
        if total < best:
            best, parts = total, dict(timer.seconds)
    forward = parts.pop("forward")
    parts["scheduler, sampling"] = best - forward
    parts["Python of the loop"] = forward - sum(seconds for part, seconds in parts.items() if part[:5] != "sched")
    least = floors(work(engine, batch), bandwidth, rate)
    print(f"\n{model}, {dtype}, one decode step of {batch} sequences with about {CONTEXT_TOKENS} tokens each")
    print(f"{'part':22}{'ms':>9}{'floor':>9}{'ratio':>7}")
    for part, seconds in sorted(parts.items(), key=lambda item: -item[1]):
        floor = least.get(part)
        beside = "" if floor is None else f"{floor * 1e3:9.2f}{seconds / floor:7.2f}"
        print(f"{part:22}{seconds * 1e3:9.2f}{beside}")
    whole = sum(least.values())
    print(f"{'step, loop':22}{best * 1e3:9.2f}{whole * 1e3:9.2f}{best / whole:7.2f}")
    print(f"{'step, one call':22}{one_call * 1e3:9.2f}{whole * 1e3:9.2f}{one_call / whole:7.2f}")
    print(f"prefill: {1 / per_token:.0f} tokens/s in the largest step")


def curve(model: str, dtype: str, threads: int) -> None:
    """Tokens per second of decode steps by batch, beside the roofline of products and KV.

    The memory's speed drifts, within seconds too: so steps are timed between two measurements of the rates, of which
    the faster counts, and the medians of several such rounds are printed. "by torch": the share of a roofline with what
    torch reads, where the engine's own kernels may read faster.
    """
    torch.set_num_threads(threads)
    print(f"\n{model}, {dtype}, {threads} thread(s), medians of {CURVE_ROUNDS} rounds")
    print(f"{'batch':>6}{'tokens/s':>10}{'share':>7}{'GB/s':>7}{'GFLOP/s':>9}{'by torch':>10}{'GB/s':>7}")
    for batch in CURVE_BATCHES:
        engine = make_engine(model, dtype, batch)
        fill(engine, batch)
        rates, rounds = _rates(dtype), []
        for _ in range(CURVE_ROUNDS):
            seconds = best_seconds(engine.step, 4)
            before, rates = rates, _rates(dtype)
            parts = work(engine, batch)
            rate, bandwidth, torch_read = (max(pair) for pair in zip(before, rates, strict=True))
            shares = (sum(floors(parts, each, rate).values()) / seconds for each in (bandwidth, torch_read))
            rounds.append((batch / seconds, *shares, bandwidth / 1e9, torch_read / 1e9, rate / 1e9))
        reached, share, by_torch, read, torch_read, multiplied = (median(each) for each in zip(*rounds, strict=True))
        print(
            f"{batch:6}{reached:10.0f}{share:7.0%}{read:7.1f}{multiplied:9.0f}{by_torch:10.0%}{torch_read:7.1f}",
            flush=True,
        )
        engine.close()


def _rates(dtype: str) -> tuple[float, float, float]:
    """peak_rate, read_bandwidth, torch_bandwidth."""
    by_torch = torch_bandwidth()
    return peak_rate(dtype), max(by_torch, weights_bandwidth(dtype)), by_torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="gpt2-124m")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--curve", action="store_true", help="tokens/s at batches 1 to 128, by threads")
    options = parser.parse_args()
    if not options.curve:
        profile(options.model, options.dtype, options.batch)
        return
    for threads in sorted({1, torch.get_num_threads()}):
        curve(options.model, options.dtype, threads)


if __name__ == "__main__":
    main()

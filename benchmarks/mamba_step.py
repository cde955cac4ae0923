"""Where a decode step of a Mamba 2 hybrid goes on the CPU, part by part, beside what its bytes and products take.

    python benchmarks/mamba_step.py [--dtype bfloat16|float32] [--batch 1 16 64]

The shape is Granite-4.0-H-350M's: hidden size 768, 28 layers of 48 heads with a state of 32 x 128 elements in the
model's dtype, 4 layers with attention, random weights. Floors: the recurrence reads and writes its states; a product
reads its weights or computes, whichever takes longer; both at what the same run measures. Minima; on a busy machine
give the command priority (``chrt -f 10``).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

from decode_step import best_seconds, peak_rate, read_bandwidth

from kvplan_engine import Engine, EngineConfig, SamplingParams
from kvplan_engine.description.parameters import model_parameters
from kvplan_engine.models.mixers.mamba2_part import Mamba2Part

LAYERS, ATTENTION = 32, (10, 13, 17, 27)
HEADS, ROWS, COLUMNS = 48, 32, 128
MODEL: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "vocab_size": 100352,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "shared_intermediate_size": 2048,
    "num_local_experts": 0,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "layer_types": ["attention" if index in ATTENTION else "mamba" for index in range(LAYERS)],
    "mamba_n_heads": HEADS,
    "mamba_d_head": ROWS,
    "mamba_d_state": COLUMNS,
    "mamba_n_groups": 1,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
CONTEXT_TOKENS = 160
PARTS = {"in": "_in", "out": "_out"}
OPERATIONS = {"convolve": "convolution", "scan_mamba2": "recurrence", "gate_rows": "gate and norm"}
Times = dict[str, float]


def make_engine(dtype: str, batch: int) -> Engine:
    """An engine whose ``batch`` sequences decode, with about CONTEXT_TOKENS tokens each."""
    config = EngineConfig(
        model=MODEL,
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
    params = SamplingParams(temperature=0.0, max_tokens=800, min_tokens=800, ignore_eos=True)
    for index in range(batch):
        engine.add_request(str(index), [(index * 997 + i * 31) % 40000 for i in range(CONTEXT_TOKENS)], params)
    for _ in range(-(-batch * CONTEXT_TOKENS // 2048) + 1):
        engine.step()
    return engine


class Timer:
    """Seconds by part, by standing in for what the layers call."""

    def __init__(self, engine: Engine) -> None:
        self.seconds: Times = defaultdict(float)
        for layer in engine.model.decoder._layers:
            mixer = layer.mixers[0]
            layer.feed_forward = _Timed(self, layer.feed_forward, {"": "MLP"})
            if not isinstance(mixer, Mamba2Part):
                layer.mixers = (_Timed(self, mixer, {"": "attention"}),)
                continue
            for name, attribute in PARTS.items():
                setattr(mixer, attribute, _Timed(self, getattr(mixer, attribute), {"": name}))
            mixer._ops = _Timed(self, mixer._ops, OPERATIONS)  # type: ignore[assignment]

    def run(self, part: str, function: Callable[..., Any], *args: Any) -> Any:
        started = time.perf_counter()
        result = function(*args)
        self.seconds[part] += time.perf_counter() - started
        return result


class _Timed:
    """names: the part of each timed method; "" of a call of ``target`` itself."""

    def __init__(self, timer: Timer, target: Any, names: dict[str, str]) -> None:
        self._timer, self._target, self._names = timer, target, names

    def __call__(self, *args: Any) -> None:
        self._timer.run(self._names[""], self._target, *args)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        part = self._names.get(name)
        return value if part is None else lambda *args: self._timer.run(part, value, *args)


def floors(engine: Engine, batch: int, bandwidth: float, rate: float) -> Times:
    """Seconds that each part takes at least."""
    model, size = engine.model.config, getattr(torch, engine.model.dtype).itemsize
    matrices = [each for each in model_parameters(model) if each.kind == "matrix"]

    def products(*parts: str) -> float:
        elements = sum(each.num_elements for each in matrices if each.part in parts)
        return max(elements * size / bandwidth, 2 * elements * batch / rate)

    states = (LAYERS - len(ATTENTION)) * HEADS * ROWS * COLUMNS * size * batch
    return {
        "in": products("in"),
        "out": products("out"),
        "MLP": products("up", "down"),
        "recurrence": 2 * states / bandwidth,
        "rest": products("embedding", "qkv", "output"),
    }


def profile(dtype: str, batch: int, bandwidth: float, rate: float) -> None:
    engine = make_engine(dtype, batch)
    step = best_seconds(engine.step, 10)
    timer = Timer(engine)
    parts: Times = {}
    for _ in range(10):
        timer.seconds.clear()
        engine.step()
        for part, seconds in timer.seconds.items():
            parts[part] = min(seconds, parts.get(part, seconds))
    least = floors(engine, batch, bandwidth, rate)
    print(f"\n{dtype}, one decode step of {batch} sequences with about {CONTEXT_TOKENS} tokens each")
    print(f"{'part':16}{'ms':>9}{'floor':>9}")
    for part, seconds in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"{part:16}{seconds * 1e3:9.2f}" + (f"{least[part] * 1e3:9.2f}" if part in least else ""))
    print(f"{'step':16}{step * 1e3:9.2f}{sum(least.values()) * 1e3:9.2f}")
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 64])
    options = parser.parse_args()
    bandwidth, rate = read_bandwidth(), peak_rate(options.dtype)
    print(
        f"{torch.get_num_threads()} threads, {bandwidth / 1e9:.1f} GB/s read, {rate / 1e9:.0f} GFLOP/s {options.dtype}"
    )
    for batch in options.batch:
        profile(options.dtype, batch, bandwidth, rate)


if __name__ == "__main__":
    main()

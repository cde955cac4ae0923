"""Memory of the process: a pool that is touched, holes in the heap, and the peak while loading."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from small_models import Checkpoint
from tiny_configs import llama_config

from kvplan_engine import LLM, SamplingParams
from kvplan_engine import engine as engine_module
from kvplan_engine.checkpoints.quantised import rounding
from kvplan_engine.description.weight_format import RECIPES
from kvplan_engine.device import process_memory
from kvplan_engine.device.process_memory import PeakMemory

SETTINGS = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 128}


def test_the_first_blocks_are_written_before_anything_has_run(checkpoints: dict[str, Checkpoint]) -> None:
    with LLM(str(checkpoints["llama"].path), dtype="float32", device="cpu", device_memory="192MiB", **SETTINGS) as llm:
        engine = llm.engine
        planes = engine.serving.runner.kv.planes  # type: ignore[attr-defined]
        planes.fill_(255)
        engine.touch_blocks(3)
        assert not planes[:, :3].any()
        assert bool((planes[:, 3:] == 255).all())
        engine.touch_blocks(engine.memory.num_blocks + 1)
        assert not planes.any()
        llm.generate([{"prompt_token_ids": [1, 2, 3]}], SamplingParams(max_tokens=2))
        with pytest.raises(AssertionError, match="prefix cache"):
            engine.touch_blocks(1)


def test_pages_of_one_layer_in_neighbouring_blocks_lie_side_by_side(checkpoints: dict[str, Checkpoint]) -> None:
    with LLM(str(checkpoints["llama"].path), dtype="float32", device="cpu", device_memory="192MiB", **SETTINGS) as llm:
        kv, memory = llm.engine.serving.runner.kv, llm.engine.memory  # type: ignore[attr-defined]
        layers = [kv.of(layer) for layer in range(len(kv.layers))]
        assert kv.planes.shape[0] == len(layers) > 1
        for layer in layers:
            page_bytes = layer.keys[0].nbytes + layer.values[0].nbytes
            assert layer.block_stride * layer.keys.itemsize == page_bytes == memory.block_bytes // len(layers)
            assert layer.values.data_ptr() - layer.keys.data_ptr() == layer.keys[0].nbytes


def test_a_pool_is_touched_as_far_as_requests_reach_memory_lasts_and_a_bound_allows(
    checkpoints: dict[str, Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 sequences of 128 tokens hold 32 blocks of 16; the pool has more."""
    with LLM(str(checkpoints["llama"].path), dtype="float32", device="cpu", device_memory="192MiB", **SETTINGS) as llm:
        engine = llm.engine
        planes, block_bytes = engine.serving.runner.kv.planes, engine.memory.block_bytes  # type: ignore[attr-defined]
        assert engine.memory.num_blocks > 32

        def touched() -> int:
            planes.fill_(255)
            num_bytes = engine.touch_pool()
            assert num_bytes == block_bytes * int((planes == 0).flatten(2).all(dim=2).all(dim=0).sum())
            return num_bytes // block_bytes

        assert touched() == 32
        monkeypatch.setattr(engine_module, "MOST_TOUCHED_BYTES", 5 * block_bytes + 1)
        assert touched() == 5
        monkeypatch.setattr(engine_module, "available_memory_bytes", lambda: 4 * block_bytes)
        assert touched() == 2


def test_an_engine_that_only_counts_has_nothing_to_write_to(checkpoints: dict[str, Checkpoint]) -> None:
    path = str(checkpoints["llama"].path)
    with LLM(path, load_format="none", device="cpu", device_memory="192MiB", **SETTINGS) as llm:
        llm.engine.touch_blocks(3)
        assert llm.engine.touch_pool() == 0
        (output,) = llm.generate([{"prompt_token_ids": [1, 2, 3]}], SamplingParams(max_tokens=2, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 2


_MIB = 1024**2
# Each round frees a large block that lies before one which stays, as a tensor on its way into its format does.
_ROUNDS = """
import ctypes, json
from contextlib import nullcontext
from kvplan_engine.device.process_memory import large_tensors_apart
from kvplan_engine.device.process_memory import private_memory_bytes
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
grown = []
libc.free(libc.malloc(30 * 1024**2))  # from now on glibc lets what is smaller share the heap
for block in (nullcontext(), large_tensors_apart()):
    before = private_memory_bytes()
    with block:
        for round in range(5):
            on_its_way = libc.malloc((round + 5) * 1024**2)
            libc.malloc(1024**2 // 2)
            libc.free(on_its_way)
    grown.append(private_memory_bytes() - before)
print(json.dumps(grown))
"""


def test_large_blocks_leave_no_holes() -> None:
    """Beside the same without it: there each larger block finds the hole before it too small."""
    if process_memory.heap_options() is None:
        pytest.skip("the C library is not glibc")
    shared, apart = json.loads(subprocess.run([sys.executable, "-c", _ROUNDS], check=True, capture_output=True).stdout)
    assert apart < 2 * _MIB
    assert shared > 8 * _MIB


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "heap_options", lambda: None)
    with process_memory.large_tensors_apart():
        pass


HIDDEN, INNER = 768, 2304
CONFIG = llama_config(
    hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=10, num_attention_heads=6, vocab_size=1024
)
LOADED: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16", "max_model_len": 64, "max_num_batched_tokens": 64}
LARGEST_TENSOR = 2 * HIDDEN * INNER * torch.float32.itemsize
"""Gate and up as they are read, widened."""


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_no_second_copy_of_the_weights(quantization: str) -> None:
    """At most weights, workspace, pool, what is kept back for everything else, and two tensors on their way.

    A second copy of the weights, as wide as they are read, would be beyond that in every format.
    """
    sizes = {"load_format": "none", "quantization": quantization, "device_memory": "1GiB", **LOADED}
    with LLM(CONFIG, **sizes) as llm:
        needed = llm.engine.memory
        wide = 2 * llm.engine.model.config.vocab_size * HIDDEN + 10 * (2 * HIDDEN**2 + 3 * HIDDEN * INNER)
    fixed = needed.weight_bytes + needed.activation_bytes + needed.overhead_bytes
    device_memory = int((fixed + 64 * needed.block_bytes) / 0.9)
    with PeakMemory() as peak:
        llm = LLM(CONFIG, load_format="dummy", quantization=quantization, device_memory=device_memory, **LOADED)
    with llm:
        memory = llm.engine.memory
    most = memory.weight_bytes + memory.activation_bytes + memory.kv_pool_bytes + memory.overhead_bytes
    most += 2 * LARGEST_TENSOR
    assert peak.bytes_above_start <= most
    assert memory.weight_bytes + wide * torch.float32.itemsize > most


@pytest.mark.parametrize("name", RECIPES)
def test_rows_at_a_time_make_the_same_codes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(600, 256, generator=torch.Generator().manual_seed(3)).bfloat16()
    whole = rounding.rounded(weight, RECIPES[name])
    monkeypatch.setattr(rounding, "_ELEMENTS_AT_ONCE", 256 * 128)
    parts = rounding.rounded(weight, RECIPES[name])
    assert torch.equal(whole.codes, parts.codes) and torch.equal(whole.scales, parts.scales)
    assert (whole.minimums is None) == (parts.minimums is None)
    assert whole.minimums is None or torch.equal(whole.minimums, parts.minimums)  # type: ignore[arg-type]

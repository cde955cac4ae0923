"""Before a measurement the blocks that it will write to are backed by memory; what others hold stays."""

from __future__ import annotations

import pytest
from small_models import Checkpoint

from kvplan_engine import LLM, SamplingParams
from kvplan_engine import engine as engine_module

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

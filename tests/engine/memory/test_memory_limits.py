"""Out-of-memory as the operating system makes it: each case runs in a process of its own under a real limit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_configs import llama_config

from kvplan_engine import LLM, ContextTooLong, EngineError, OutOfDeviceMemory, SamplingParams

MIB = 1024**2

# 100 MiB of float32 weights, small everything else
CONFIG = llama_config(
    hidden_size=512,
    intermediate_size=2048,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=8,
    vocab_size=8192,
    max_position_embeddings=2048,
    tie_word_embeddings=False,
)

_PRELUDE = """
import json, sys
from kvplan_engine import Engine, EngineConfig, EngineError, OutOfDeviceMemory, SamplingParams
from kvplan_engine.device.process_memory import limit_private_memory
config = json.loads(sys.argv[1])
MIB = 1024**2
def start(device_mib, **settings):
    settings = {"max_num_batched_tokens": 128, "max_num_seqs": 8, "max_model_len": 512} | settings
    return Engine(EngineConfig(model=config, device="cpu", dtype="float32", load_format="dummy",
                               device_memory=device_mib * MIB, **settings))
def run(engine):
    for i in range(4):
        engine.add_request(str(i), list(range(1, 40)), SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
"""


def in_process(body: str) -> dict[str, Any]:
    """Run ``body`` after the prelude; what it printed last, as JSON."""
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", _PRELUDE + body, json.dumps(CONFIG)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


@pytest.mark.slow
def test_weights_that_the_operating_system_refuses() -> None:
    result = in_process("""
limit_private_memory(64 * MIB)
try:
    start(64)
except OutOfDeviceMemory as error:
    print(json.dumps({"status": error.status, "message": error.message}))
""")
    assert result["status"] == "oom_weights"
    assert "the system has no room" in result["message"], "the operating system's refusal, not our arithmetic"


@pytest.mark.slow
def test_the_pool_is_what_the_limit_leaves_and_serving_stays_within_it() -> None:
    result = in_process("""
from kvplan_engine.device.process_memory import private_memory_bytes
limit = limit_private_memory(400 * MIB)
engine = start(400, gpu_memory_utilization=1.0)
run(engine)
print(json.dumps({"limit": limit, "used": private_memory_bytes(), "pool": engine.memory.kv_pool_bytes}))
""")
    assert result["pool"] > 100 * MIB
    assert result["used"] <= result["limit"]


@pytest.mark.slow
def test_an_allocation_that_fails_while_running_is_told_apart_and_survived() -> None:
    result = in_process("""
engine = start(400)
free = limit_private_memory(0)
try:
    import torch
    engine.model.ops.argmax_rows = lambda logits, out: torch.empty(64 * MIB)
    run(engine)
except OutOfDeviceMemory as error:
    status = error.status
for i in range(4):
    engine.abort(str(i))
engine.check()
print(json.dumps({"status": status, "free": engine.get_stats()["num_free_blocks"], "all": engine.memory.num_blocks}))
""")
    assert result["status"] == "oom_runtime"
    assert result["free"] == result["all"], "after aborting, every block is free"


@pytest.fixture
def config_path(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return str(path)


def _start(path: str, **settings: Any) -> LLM:
    defaults: dict[str, Any] = {"max_num_batched_tokens": 128, "max_num_seqs": 8, "device_memory": "400MiB"}
    defaults |= {"device": "cpu", "dtype": "float32", "load_format": "dummy"}
    return LLM(path, **(defaults | settings))


def test_a_utilization_below_the_weights_is_an_out_of_memory_of_the_weights(config_path: str) -> None:
    with pytest.raises(OutOfDeviceMemory, match="the weights take") as caught:
        _start(config_path, gpu_memory_utilization=0.01)
    assert caught.value.status == "oom_weights"


def test_no_room_for_a_pool(config_path: str) -> None:
    with pytest.raises(OutOfDeviceMemory, match="nothing is left for the KV pool") as caught:
        _start(config_path, gpu_memory_utilization=0.5)
    assert caught.value.status == "oom_kv_init"


def test_a_context_beyond_the_pool_is_refused_with_the_largest_that_fits(config_path: str) -> None:
    with pytest.raises(ContextTooLong) as caught:
        _start(config_path, device_memory="250MiB", gpu_memory_utilization=1.0)
    largest = caught.value.largest_tokens
    assert 0 < largest < 2048 and caught.value.limited_by == "pool"
    assert caught.value.hint is not None
    assert str(largest) in caught.value.hint
    llm = _start(config_path, device_memory="250MiB", gpu_memory_utilization=1.0, max_model_len=largest)
    (output,) = llm.generate(
        [{"prompt_token_ids": list(range(1, largest - 10))}], SamplingParams(temperature=0.0, max_tokens=64)
    )
    assert output.outputs[0].finish_reason == "length"
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == largest


def test_a_context_beyond_the_models_positions_is_refused(config_path: str) -> None:
    with pytest.raises(ContextTooLong, match="2,048 positions") as caught:
        _start(config_path, max_model_len=4096)
    assert (caught.value.limited_by, caught.value.largest_tokens) == ("model", 2048)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"gpu_memory_utilization": 1.7}, "gpu_memory_utilization must be in"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"dtype": "int3"}, "dtype 'int3' is not known"),
        ({"device_memory": "lots"}, "'lots' is not an amount of memory"),
        ({"device_memory": "90000GiB"}, "more than is free"),
        ({"device": "cuda"}, "no CUDA device"),
        ({"turbo": True}, "unknown setting"),
    ],
)
def test_a_bad_setting_is_one_sentence(config_path: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        _start(config_path, **settings)


def test_text_for_dummy_weights_is_refused_with_a_way_out(config_path: str) -> None:
    with pytest.raises(EngineError, match="dummy weights") as caught:
        _start(config_path).generate("hello")
    assert caught.value.hint is not None
    assert "prompt_token_ids" in caught.value.hint


def test_a_bad_prompt_among_good_ones_starts_none(config_path: str) -> None:
    llm = _start(config_path)
    good = {"prompt_token_ids": [1, 2, 3]}
    for bad in ({"prompt_token_ids": []}, {"prompt_token_ids": [99999]}, {"prompt_token_ids": [1] * 3000}):
        with pytest.raises(EngineError):
            llm.generate([good, bad], SamplingParams(max_tokens=4))
        assert not llm.engine.has_unfinished_requests()
    assert len(llm.generate([good], SamplingParams(max_tokens=4))) == 1

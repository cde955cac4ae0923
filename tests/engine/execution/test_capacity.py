"""``load_format="none"``: the same account and the same schedule as with tensors, and no tensors."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from multi_token_models import MultiTokenCheckpoint
from small_models import Checkpoint

from kvplan_engine import LLM, Engine, EngineConfig, EngineError, SamplingParams
from kvplan_engine.errors import ContextTooLong, OutOfDeviceMemory
from kvplan_engine.requests.beams import BeamSearchParams

MIB = 1024**2
GIB = 1024**3
LLAMA = "llama-3.1-8b"
SETTINGS: dict[str, Any] = {"device": "cpu", "device_memory": 160 * MIB, "dtype": "float32", "max_model_len": 128}
# About 60 blocks beside weights, workspace and overhead: a few sequences fill them.
TIGHT = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "block_size": 4}


def _engine(model: Any, load_format: str = "none", **settings: Any) -> Engine:
    return Engine(EngineConfig(model=model, load_format=load_format, **{**SETTINGS, **settings}))


def _requests(number: int, seed: int = 0) -> list[tuple[list[int], SamplingParams]]:
    rng = random.Random(seed)
    shared = [rng.randrange(300) for _ in range(24)]
    return [
        (
            shared[: rng.choice((0, 8, 24))] + [rng.randrange(300) for _ in range(rng.randint(1, 60))],
            SamplingParams(temperature=0.0, max_tokens=rng.randint(1, 30), ignore_eos=True),
        )
        for _ in range(number)
    ]


def _counts(engine: Engine, requests: list[tuple[list[int], SamplingParams]]) -> list[dict[str, Any]]:
    """The counts of every step, without its times."""
    for index, (prompt, params) in enumerate(requests):
        engine.add_request(f"r{index}", prompt, params)
    steps = []
    while engine.has_unfinished_requests():
        engine.step()
        engine.check()
        counts = asdict(engine.stats)
        steps.append({name: value for name, value in counts.items() if not name.endswith("_seconds")})
    return steps


def _utilization(checkpoint: Checkpoint, num_blocks: int, **settings: Any) -> float:
    """The share of the device at which the pool has this many blocks."""
    memory = _engine(str(checkpoint.path), **settings).memory
    return (memory.budget_bytes - memory.kv_pool_bytes + (num_blocks + 0.5) * memory.block_bytes) / (160 * MIB)


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_the_account_is_that_of_an_engine_with_tensors(name: str, checkpoints: dict[str, Checkpoint]) -> None:
    path = str(checkpoints[name].path)
    for settings in ({}, {"block_size": 8, "max_num_seqs": 3}, {"kv_cache_dtype": "bfloat16"}):
        counted = _engine(path, **settings)
        loaded = _engine(path, "dummy", **settings)
        # what the profile step took is measured, not counted
        assert counted.memory == replace(loaded.memory, activation_peak_bytes=0)
        assert counted.max_model_len == loaded.max_model_len


def test_the_account_of_a_drafter_is_that_of_an_engine_with_tensors(
    checkpoints: dict[str, Checkpoint], tmp_path: Path
) -> None:
    """A second model and a layer of the model's own; random tokens accept hardly any draft."""
    llama = str(checkpoints["llama"].path)
    layered = str(MultiTokenCheckpoint("mimo", tmp_path).path)
    for path, drafting in ((llama, {"model": llama}), (layered, {"method": "mtp"})):
        settings = {"speculative_config": {**drafting, "num_speculative_tokens": 2}, "block_size": 8}
        counted, loaded = _engine(path, **settings), _engine(path, "dummy", **settings)
        assert counted.memory == replace(loaded.memory, activation_peak_bytes=0)
        _counts(counted, _requests(4))
        assert counted.draft_counts.num_draft_tokens > counted.draft_counts.num_accepted_tokens
        loaded.close()
        counted.reconfigure(speculative_config=None)
        assert counted.memory.block_bytes < loaded.memory.block_bytes
    with pytest.raises(EngineError, match="started without this drafter"):
        _engine(llama).reconfigure(speculative_config=settings["speculative_config"])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"enable_prefix_caching": False},
        {"preemption_mode": "swap", "swap_space": MIB},
        {"kv_host_cache_bytes": MIB, "kv_load_policy": "always"},
        {"scheduling": "static"},
        {"kv_reservation": "contiguous", "enable_prefix_caching": False},
    ],
    ids=["recompute", "no-cache", "swap", "host-cache", "static", "contiguous"],
)
def test_every_step_is_that_of_an_engine_with_tensors(
    settings: dict[str, Any], checkpoints: dict[str, Checkpoint]
) -> None:
    checkpoint = checkpoints["llama"]
    common = {**TIGHT, **settings}
    common["gpu_memory_utilization"] = _utilization(checkpoint, 60, **common)
    requests = _requests(20)
    counted, loaded = _engine(str(checkpoint.path), **common), _engine(str(checkpoint.path), "dummy", **common)
    steps = _counts(counted, requests)
    assert steps == _counts(loaded, requests)
    assert max(step["num_waiting"] for step in steps) > 0
    if "kv_reservation" not in settings and "scheduling" not in settings:
        assert steps[-1]["num_preemptions"] > 0
    ours, theirs = counted.get_stats(), loaded.get_stats()
    for stats in (ours, theirs):
        del stats["memory"], stats["longest_stall_seconds"]
    assert ours == theirs


def test_a_device_larger_than_this_machine() -> None:
    engine = _engine(LLAMA, device_memory=640 * GIB, dtype="auto", max_model_len=131072)
    assert engine.memory.weight_bytes == 2 * 8_030_261_248
    assert engine.memory.num_blocks == engine.memory.kv_pool_bytes // engine.memory.block_bytes
    assert engine.memory.kv_pool_bytes > 550 * GIB
    request = engine.add_request("long", [1] * 100_000, SamplingParams(temperature=0.0, max_tokens=3))
    while engine.has_unfinished_requests():
        engine.step()
    assert len(request.sequences[0].output_token_ids) == 3


def test_what_does_not_fit_is_refused_as_with_tensors() -> None:
    with pytest.raises(OutOfDeviceMemory, match=r"the weights take 14\.96 GiB") as caught:
        _engine(LLAMA, device_memory=16 * GIB, dtype="bfloat16")
    assert caught.value.phase == "weights"
    with pytest.raises(OutOfDeviceMemory, match="nothing is left for the KV pool"):
        _engine(LLAMA, device_memory=17 * GIB, dtype="bfloat16", max_num_batched_tokens=8192)
    with pytest.raises(ContextTooLong):
        _engine(LLAMA, device_memory=20 * GIB, dtype="bfloat16", max_model_len=131072)


def test_a_gpu_that_is_not_there_is_counted_if_its_memory_is_given() -> None:
    on_gpu = _engine(LLAMA, device="cuda", device_memory=80 * GIB, dtype="auto")
    on_cpu = _engine(LLAMA, device="cpu", device_memory=80 * GIB, dtype="auto")
    assert on_gpu.memory.overhead_bytes - on_cpu.memory.overhead_bytes == 512 * MIB
    assert on_gpu.memory.graph_bytes == 0
    assert on_gpu.model.dtype == on_cpu.model.dtype == "bfloat16"


def test_weight_bytes_replaces_the_count() -> None:
    counted = _engine(LLAMA, device_memory=80 * GIB, dtype="bfloat16")
    smaller = _engine(LLAMA, device_memory=80 * GIB, dtype="bfloat16", weight_bytes=5 * GIB)
    assert smaller.memory.weight_bytes == 5 * GIB
    assert smaller.memory.kv_pool_bytes - counted.memory.kv_pool_bytes == counted.memory.weight_bytes - 5 * GIB


def test_tokens_depend_on_seed_sample_and_position_alone() -> None:
    def answers(seed: int = 0, **settings: Any) -> list[list[int]]:
        llm = LLM(LLAMA, load_format="none", device_memory=40 * GIB, max_model_len=256, seed=seed, **settings)
        prompts = [{"prompt_token_ids": [7, 8, 9]}, {"prompt_token_ids": [9]}, {"prompt_token_ids": [7, 8, 9]}]
        params = [
            SamplingParams(temperature=0.0, max_tokens=12),
            SamplingParams(seed=5, n=2, max_tokens=12),
            SamplingParams(temperature=0.0, max_tokens=12),
        ]
        return [each.token_ids for output in llm.generate(prompts, params) for each in output.outputs]

    first = answers()
    assert first == answers(max_num_seqs=2, max_num_batched_tokens=2)
    assert first == answers(async_scheduling=True)
    assert first[0] == first[3]  # equal prompts, greedy
    assert first[1] != first[2]  # two samples
    assert first[1:3] == answers(seed=1)[1:3]  # a request's seed counts, where it has one
    assert first[0] != answers(seed=1)[0]
    assert all(len(answer) == 12 and len(set(answer)) > 8 for answer in first)
    assert all(0 <= token < 128_256 for answer in first for token in answer)


def test_random_requests_without_a_seed_differ() -> None:
    llm = LLM(LLAMA, load_format="none", device_memory=40 * GIB, max_model_len=256)
    params = SamplingParams(max_tokens=8, logit_bias={3: 1.0}, presence_penalty=1.0)
    first, second = llm.generate([{"prompt_token_ids": [1, 2]}] * 2, params)
    assert first.outputs[0].token_ids != second.outputs[0].token_ids


def test_no_token_ends_an_answer(checkpoints: dict[str, Checkpoint]) -> None:
    """The vocabulary has 384 tokens, of which all but two end the answer."""
    engine = _engine(str(checkpoints["llama"].path))
    params = SamplingParams(max_tokens=100, stop_token_ids=[token for token in range(384) if token not in (17, 200)])
    request = engine.add_request("a", [5], params)
    while engine.has_unfinished_requests():
        engine.step()
    assert set(request.sequences[0].output_token_ids) == {17, 200}
    assert len(request.sequences[0].output_token_ids) == 100


def test_nothing_is_compiled_or_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvplan_engine.kernels.cpu import library
    from kvplan_engine.models import loaded_model

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an engine without tensors needs neither kernels nor weights")

    monkeypatch.setattr(library, "cpu_kernels", refuse)
    monkeypatch.setattr(loaded_model, "select_kernels", refuse)
    monkeypatch.setattr(loaded_model, "allocate_weights", refuse)
    llm = LLM(LLAMA, load_format="none", device_memory=40 * GIB, max_model_len=256)
    llm.generate({"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=4))


def test_a_new_pool_for_other_settings() -> None:
    engine = _engine(LLAMA, device_memory=40 * GIB, dtype="bfloat16")
    before = engine.memory
    engine.reconfigure(block_size=32, gpu_memory_utilization=0.5)
    assert engine.memory.block_bytes == 2 * before.block_bytes
    assert engine.memory.budget_bytes == 20 * GIB
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.step()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_disk_cache_dir": "cache", "kv_disk_cache_bytes": GIB}, "no KV that could be written to disk"),
        ({"load_format": "dummy", "weight_bytes": GIB}, "weight_bytes is for load_format 'none'"),
    ],
)
def test_settings_that_contradict_it(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        EngineConfig(**{"model": LLAMA, "load_format": "none", **settings})
    assert caught.value.hint


def test_what_needs_logits_is_refused() -> None:
    llm = LLM(LLAMA, load_format="none", device_memory=40 * GIB, max_model_len=256)
    prompt = {"prompt_token_ids": [1, 2, 3]}
    with pytest.raises(EngineError, match="no log-probabilities"):
        llm.generate(prompt, SamplingParams(logprobs=1))
    with pytest.raises(EngineError, match="no stop strings"):
        llm.generate(prompt, SamplingParams(stop="."))
    with pytest.raises(EngineError, match="no beam is better"):
        llm.beam_search(prompt, BeamSearchParams(beam_width=2, max_tokens=4))
    with pytest.raises(EngineError, match="would be noise"):
        llm.generate("a text")
    with pytest.raises(EngineError, match="computes nothing"):
        _ = llm.engine.decoder
    assert not llm.engine.has_unfinished_requests()


def test_the_memory_of_an_absent_gpu_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvplan_engine.device import device
    from kvplan_engine.device.cuda import Absence

    monkeypatch.setattr(device, "why_no_usable_gpu", lambda: Absence("there is none.", None, None))
    with pytest.raises(EngineError, match="no GPU here whose memory could be counted") as caught:
        _engine(LLAMA, device="cuda", device_memory=None)
    assert "device_memory" in (caught.value.hint or "")

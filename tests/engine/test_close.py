"""Closing an engine gives its memory back, and several threads may use one: calls queue, and answers stay the same."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_answers import small_llm
from small_models import Checkpoint

from kvplan_engine import LLM, BeamSearchParams, EngineError, SamplingParams

MIB = 1024**2


def make_llm(checkpoint: Checkpoint, **settings: object) -> LLM:
    return small_llm(
        checkpoint.path, **{"max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 128} | settings
    )


_IN_A_NEW_PROCESS = """
import gc, sys
from kvplan_engine import LLM
from kvplan_engine.device.process_memory import private_memory_bytes, resident_memory_bytes

settings = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 128, "device_memory": "512MiB"}
host = {"swap_space": "64MiB", "preemption_mode": "swap"}
with LLM(sys.argv[1], dtype="float32", device="cpu", **settings, **host) as llm:
    pool_bytes = llm.engine.memory.kv_pool_bytes
    llm.engine.serving.runner.kv.planes.zero_()
    resident, private = resident_memory_bytes(), private_memory_bytes()
gc.collect()
print(pool_bytes, resident - resident_memory_bytes(), private - private_memory_bytes())
"""


def test_memory_is_returned(checkpoints: dict[str, Checkpoint]) -> None:
    """The pool is virtual memory until it is written, so every page of it is touched first.

    In a process of its own: one that has held and freed much may serve a pool from memory that it keeps.
    """
    command = [sys.executable, "-c", _IN_A_NEW_PROCESS, str(checkpoints["llama"].path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pool_bytes, resident, private = map(int, done.stdout.split())
    assert pool_bytes > 200 * MIB
    assert resident > 0.95 * pool_bytes
    assert private > 0.95 * (pool_bytes + 64 * MIB)


def test_closing_twice_and_in_the_middle_of_an_answer(checkpoints: dict[str, Checkpoint]) -> None:
    llm = make_llm(checkpoints["gpt2"])
    llm.engine.add_request("r", [1, 2, 3], SamplingParams(max_tokens=50))
    llm.engine.step()
    llm.close()
    llm.close()
    llm.engine.close()


USES: dict[str, Callable[[LLM], object]] = {
    "generate": lambda llm: llm.generate([{"prompt_token_ids": [1, 2]}]),
    "generate text": lambda llm: llm.generate("text"),
    "beam search": lambda llm: llm.beam_search([{"prompt_token_ids": [1, 2]}], BeamSearchParams(beam_width=2)),
    "stats": lambda llm: llm.get_stats(),
    "add": lambda llm: llm.engine.add_request("r", [1], SamplingParams()),
    "step": lambda llm: llm.engine.step(),
    "unfinished": lambda llm: llm.engine.has_unfinished_requests(),
    "reconfigure": lambda llm: llm.engine.reconfigure(block_size=8),
}


@pytest.mark.parametrize("use", USES)
def test_use_after_close_is_one_clear_error(checkpoints: dict[str, Checkpoint], use: str) -> None:
    llm = make_llm(checkpoints["gpt2"])
    llm.close()
    with pytest.raises(EngineError, match=r"^the engine is closed\.") as caught:
        USES[use](llm)
    assert caught.value.hint == "start a new one"


def test_an_engine_that_found_no_room_says_so_and_can_be_given_some(checkpoints: dict[str, Checkpoint]) -> None:
    llm = make_llm(checkpoints["gpt2"])
    with pytest.raises(EngineError):
        llm.engine.reconfigure(gpu_memory_utilization=0.01)
    with pytest.raises(EngineError, match="has no pool") as caught:
        llm.engine.step()
    assert "reconfigure" in caught.value.hint
    llm.engine.reconfigure(gpu_memory_utilization=0.9)
    (output,) = llm.generate([{"prompt_token_ids": [1, 2]}], SamplingParams(max_tokens=3, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 3
    llm.close()


def test_a_closed_engine_leaves_its_cache_on_disk_and_no_file_open(
    checkpoints: dict[str, Checkpoint], tmp_path: Path
) -> None:
    prompt = list(range(1, 100))
    tiers = {"kv_disk_cache_dir": str(tmp_path), "kv_disk_cache_bytes": "8MiB", "kv_load_policy": "always"}
    for cached in (0, 96):
        with make_llm(checkpoints["qwen3"], **tiers) as llm:
            (output,) = llm.generate([{"prompt_token_ids": prompt}], SamplingParams(max_tokens=1))
        assert output.num_cached_tokens == cached
        open_files = [entry.resolve() for entry in Path("/proc/self/fd").iterdir() if entry.exists()]
        assert not [path for path in open_files if tmp_path in path.parents]


PARAMS = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


def prompt(first: int) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": [first, first + 1, first + 2]}]


def test_generate_from_two_threads_at_once(checkpoints: dict[str, Checkpoint]) -> None:
    """Before calls queued, the threads stepped one engine together: answers went missing, or its queues broke."""
    rounds = 8
    with small_llm(checkpoints["gpt2"].path, max_model_len=128) as llm:
        expected = {first: llm.generate(prompt(first), PARAMS)[0].outputs[0].token_ids for first in (1, 20)}
        beams = llm.beam_search(prompt(5), BeamSearchParams(beam_width=2, max_tokens=8))[0].sequences[0].tokens
        got: dict[int, list[list[int]]] = {1: [], 20: []}
        searched: list[list[int]] = []
        ready = threading.Barrier(3)

        def generate(first: int) -> None:
            ready.wait()
            for _ in range(rounds):
                (output,) = llm.generate(prompt(first), PARAMS)
                got[first].append(list(output.outputs[0].token_ids))

        def search() -> None:
            ready.wait()
            params = BeamSearchParams(beam_width=2, max_tokens=8)
            searched.extend(llm.beam_search(prompt(5), params)[0].sequences[0].tokens for _ in range(rounds))

        threads = [threading.Thread(target=generate, args=(first,)) for first in got]
        threads.append(threading.Thread(target=search))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == {first: [list(tokens)] * rounds for first, tokens in expected.items()}
        assert searched == [beams] * rounds
        llm.engine.check()

"""Small sums over ranks in memory that they share: the engine's processes over the emulated kernel."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from emulated_ranks import EmulatedRank
from engine_answers import answer, random_prompts
from fake_gpu import FakeGpu, FakeGraph
from small_models import greedy, wide_gpt2

from kvplan.catalog.models import resolve_model
from kvplan.estimate.kvplan.launches import step_launches
from kvplan_engine import LLM, Engine, SamplingParams
from kvplan_engine.errors import RankDied
from kvplan_engine.kernels.cuda.all_reduce import SHARED_BYTES, OneShotAllReduce

SETTINGS = {"dtype": "float32", "max_num_batched_tokens": 32, "max_num_seqs": 4, "max_model_len": 64}


def num_sums(rank: EmulatedRank) -> int:
    """Sums that were left to the library."""
    return sum(call.name == "allreduce" for call in rank.calls)


def test_tokens_are_those_of_one_process_without_a_sum_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In prompts, eager decode steps and replays; with the switch off all sums are the library's."""
    model, prompts = wide_gpt2(tmp_path), random_prompts(5, 40)
    rank = EmulatedRank(monkeypatch)
    with LLM(str(tmp_path), **SETTINGS, tensor_parallel_size=2) as llm:
        of_check = num_sums(rank)
        assert answer(llm, prompts, 6) == greedy(model, prompts, 6)
        assert llm.engine.get_stats()["num_graph_replays"] >= 5
        assert "all_reduce" in rank.gpu.runtime.launched
        assert num_sums(rank) == of_check > 0
        _check_prediction(tmp_path, llm.engine, rank)


def _check_prediction(path: Path, engine: Engine, rank: EmulatedRank) -> None:
    """What the ranks share is counted as overhead; a sum is one launch, whoever makes it."""
    assert rank.gpu.context_bytes == FakeGpu().context_bytes + SHARED_BYTES
    uncounted = engine.model.weight_bytes  # this fake counts no tensors as used
    assert engine.memory.overhead_bytes == rank.gpu.context_bytes - uncounted
    spec, graphs = resolve_model(str(path)), engine.serving.runner.graphs
    assert graphs is not None
    for size, graph in graphs._graphs.items():
        launches = step_launches(spec, size.num_tokens, has_prompts=size.has_prompts, num_ranks=2)
        assert len(graph.calls) == launches


def test_with_the_switch_all_sums_are_the_librarys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = wide_gpt2(tmp_path), random_prompts(5)
    rank = EmulatedRank(monkeypatch)
    with LLM(str(tmp_path), **SETTINGS, tensor_parallel_size=2, disable_custom_all_reduce=True) as llm:
        assert answer(llm, prompts, 3) == greedy(model, prompts, 3)
    assert "all_reduce" not in rank.gpu.runtime.launched
    assert num_sums(rank) > 0


@pytest.mark.parametrize("is_captured", [False, True], ids=["eager", "a replay"])
def test_a_lost_rank_ends_the_wait_for_its_signal(
    is_captured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops in the middle of a step, and is ended while the first one waits in the kernel."""
    wide_gpt2(tmp_path)
    rank, ends = EmulatedRank(monkeypatch), list[threading.Timer]()
    place, name = (FakeGraph, "replay") if is_captured else (OneShotAllReduce, "__call__")
    work = getattr(place, name)

    def stop_the_other(*arguments: Any) -> None:
        (process,) = rank.processes
        if not ends:
            process.send_signal(signal.SIGSTOP)
            ends.append(threading.Timer(0.5, process.kill))
            ends[0].start()
        work(*arguments)

    settings = SETTINGS | {"tensor_parallel_size": 2, "enforce_eager": not is_captured}
    with LLM(str(tmp_path), **settings) as llm:
        monkeypatch.setattr(place, name, stop_the_other)
        with pytest.raises(RankDied, match=r"^rank 1 of 2 was ended by SIGKILL\.$"):
            llm.generate([{"prompt_token_ids": [3, 4, 5]}], SamplingParams(max_tokens=1, ignore_eos=True))

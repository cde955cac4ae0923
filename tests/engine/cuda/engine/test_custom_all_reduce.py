"""Small sums over ranks in memory that they share: the engine's processes over the emulated kernel."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from emulated_ranks import EmulatedRank
from engine_answers import answer, random_prompts
from fake_gpu import FakeGpu, FakeGraph
from fake_ranks import FakeRanks
from small_models import greedy, wide_gpt2

from kvplan.catalog.models import resolve_model
from kvplan.estimate.kvplan.graphs import step_launches
from kvplan_engine import LLM, Engine, EngineConfig, SamplingParams
from kvplan_engine.device.collectives import Collectives
from kvplan_engine.device.custom_all_reduce import Choice
from kvplan_engine.errors import RankDied
from kvplan_engine.kernels.cuda.all_reduce import SHARED_BYTES
from kvplan_engine.models import device_kernels, loaded_model
from kvplan_engine.models.device_kernels import DeviceKernels

SETTINGS = {"dtype": "float32", "max_num_batched_tokens": 32, "max_num_seqs": 4, "max_model_len": 64}


def num_sums(rank: EmulatedRank) -> int:
    """Sums that were left to the library."""
    return sum(call.name == "allreduce" for call in rank.calls)


def test_tokens_are_those_of_one_process_without_a_sum_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In prompts and replays."""
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


@pytest.mark.parametrize("disabled", [False, True])
def test_the_switch_is_every_ranks(disabled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide_gpt2(tmp_path)
    fake, opened = FakeRanks(monkeypatch, 2), set[int]()

    def kernels(*place: Any) -> DeviceKernels:
        return replace(fake._kernels(*place), shares_memory=fake.gpus[fake.device].runtime)

    def choose_none(_: object, collectives: Collectives, *__: object, **___: object) -> Choice:
        opened.add(collectives.rank.index)
        return Choice(None, "off")

    monkeypatch.setattr(loaded_model, "select_kernels", kernels)
    monkeypatch.setattr(device_kernels, "choose_all_reduce", choose_none)
    settings = SETTINGS | {"tensor_parallel_size": 2, "disable_custom_all_reduce": disabled}
    Engine(EngineConfig(model=str(tmp_path), **settings), with_pool=False).close()
    assert opened == (set() if disabled else {0, 1})


def test_a_lost_rank_ends_the_wait_for_its_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops at a replay, and is ended while the first one waits in the kernel. (Eager: test_cuda_all_reduce.py.)"""
    wide_gpt2(tmp_path)
    rank, replay, ends = EmulatedRank(monkeypatch), FakeGraph.replay, list[threading.Timer]()

    def stop_the_other(graph: FakeGraph) -> None:
        (process,) = rank.processes
        if not ends:
            process.send_signal(signal.SIGSTOP)
            ends.append(threading.Timer(0.5, process.kill))
            ends[0].start()
        replay(graph)

    with LLM(str(tmp_path), **SETTINGS, tensor_parallel_size=2) as llm:
        monkeypatch.setattr(FakeGraph, "replay", stop_the_other)
        with pytest.raises(RankDied, match=r"^rank 1 of 2 was ended by SIGKILL\.$"):
            llm.generate([{"prompt_token_ids": [3, 4, 5]}], SamplingParams(max_tokens=1, ignore_eos=True))

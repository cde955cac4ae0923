"""Several ranks on a GPU each, as far as no GPU is needed: devices, uploads, collectives and their order, graphs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from engine_answers import answer, random_prompts
from fake_gpu import MIB
from fake_ranks import FakeRanks, RankGpu, storage_of
from small_models import greedy, saved_model, wide_gpt2

from kvplan.catalog.models import resolve_model
from kvplan.estimate.kvplan.graphs import step_launches
from kvplan_engine import LLM, Engine, EngineConfig, EngineError, OutOfDeviceMemory, SamplingParams
from kvplan_engine.errors import RankDied
from kvplan_engine.execution import starting
from kvplan_engine.execution.graphs import captured_sizes
from kvplan_engine.execution.ranks import following

NUM_TOKENS = 6
SETTINGS = {"dtype": "float32", "max_num_batched_tokens": 32, "max_num_seqs": 4, "max_model_len": 64}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    """A head for each of two ranks."""
    path = tmp_path_factory.mktemp("ranks")
    return path, wide_gpt2(path)


@pytest.mark.parametrize(("num_ranks", "num_stages"), [(2, 1), (2, 2)])
def test_each_rank_computes_on_its_own_gpu_and_all_meet_in_the_same_order(
    gpt2: tuple[Path, torch.nn.Module], num_ranks: int, num_stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, model = gpt2
    total = num_ranks * num_stages
    fake = FakeRanks(monkeypatch, total)
    prompts = random_prompts(5, 40)
    with LLM(str(path), **SETTINGS, tensor_parallel_size=num_ranks, pipeline_parallel_size=num_stages) as llm:
        runners = fake.runners(llm.engine.serving.runner)
        assert sorted(fake.gpus) == sorted(runners) == list(range(total))
        for calls in fake.calls.values():
            calls.clear()  # of profile steps, whose workspaces may be others
        uploads = {number: gpu.num_uploads for number, gpu in fake.gpus.items()}
        for gpu in fake.gpus.values():
            gpu.runtime.launched.clear()
        assert answer(llm, prompts, NUM_TOKENS) == greedy(model, prompts, NUM_TOKENS)

        for number, runner in runners.items():
            gpu = fake.gpus[number]
            assert runner.device is gpu
            assert gpu.runtime.launched, f"rank {number} computed nothing"
            assert "copy_inputs" in gpu.runtime.launched, f"rank {number} was sent no indices"
            assert gpu.num_uploads == uploads[number], "one launch brings all of them"
            sizes = runner.graph_sizes
            assert bool(sizes) == (num_stages == 1), "stages wait for each other between their layers"
            # once to see what they take, once in the pool; each step with one token of each sequence is a replay
            assert gpu.num_captures == 2 * len(sizes)
            assert runner.num_graph_replays == (llm.engine.get_stats()["num_graph_replays"] if sizes else 0)
            assert runner.num_graph_replays >= (NUM_TOKENS - 1 if sizes else 0)
            own = {storage_of(runner.workspace[name]) for name in runner.workspace}
            used = [call for (device, _), calls in fake.calls.items() if device == number for call in calls]
            assert used and all(call.storages <= own for call in used), f"rank {number}: memory of another place"
    _check_stages(fake, num_ranks, num_stages)
    _check_all(fake, total)


def _check_stages(fake: FakeRanks, num_ranks: int, num_stages: int) -> None:
    """Ranks that share every layer sum and gather the same shapes, one after the other."""
    for stage in range(num_stages):
        orders = []
        for index in range(num_ranks):
            calls = fake.calls[stage * num_ranks + index, num_ranks]
            orders.append([(call.name, call.shapes[-1]) for call in calls])
        assert all(order == orders[0] for order in orders)
        assert "allreduce" in {name for name, _ in orders[0]}


def _check_all(fake: FakeRanks, total: int) -> None:
    """Token numbers go from the first rank's device to all others: they may never have been on the host."""
    sent = [[call.shapes for call in fake.calls[number, total] if call.name == "broadcast"] for number in range(total)]
    assert sent[0] and all(each == sent[0] for each in sent)


def test_gpus_of_two_kinds_are_divided_by_the_smaller_and_by_what_others_hold(
    gpt2: tuple[Path, torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said before the pool is made is what each rank's pool leaves: a second GPU had been too full for it."""
    fake = FakeRanks(monkeypatch, 2)
    settings = EngineConfig(model=str(gpt2[0]), load_format="dummy", tensor_parallel_size=2, **SETTINGS)
    engine = Engine(settings, with_pool=False)
    second = fake.gpus[1]
    second.total_bytes, second.context_bytes = 300 * MIB, 90 * MIB
    held = second.used_bytes() - engine.model.weight_bytes
    try:
        reserve = engine.settle()
        assert (reserve.total_bytes, reserve.overhead_bytes) == (300 * MIB, held)
        engine.reconfigure()
        memory = engine.memory
        assert (memory.device_total_bytes, memory.overhead_bytes) == (300 * MIB, held)
        needs, room = engine._open.carver.needs, memory.budget_bytes - reserve.graph_bytes
        assert memory.num_blocks == min(each.num_blocks(room) for each in needs)
    finally:
        engine.close()


def test_a_rank_without_memory_for_its_graphs_ends_the_start(
    gpt2: tuple[Path, torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one waits for it in the middle of a step."""
    fake = FakeRanks(monkeypatch, 2)
    opened = FakeRanks._open

    def open_full(ranks: FakeRanks, *arguments: object) -> RankGpu:
        gpu = opened(ranks, *arguments)
        gpu.refuses_graph = 1 if ranks.device == 1 else None
        return gpu

    monkeypatch.setattr(FakeRanks, "_open", open_full)
    for room in (following, starting):
        monkeypatch.setattr(room, "open_cuda" if room is following else "open_device", fake._open)
    with pytest.raises(OutOfDeviceMemory) as caught:
        LLM(str(gpt2[0]), **SETTINGS, tensor_parallel_size=2)
    assert caught.value.phase == "graph_capture"


def test_graphs_of_the_rank_that_takes_most_leave_the_pool_of_all(
    gpt2: tuple[Path, torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRanks(monkeypatch, 2)
    settings = EngineConfig(model=str(gpt2[0]), load_format="dummy", tensor_parallel_size=2, **SETTINGS)
    engine = Engine(settings, with_pool=False)
    try:
        fake.gpus[1].graph_bytes = 5 * MIB
        reserve = engine.settle()
        num_sizes = len(captured_sizes(4, 32, with_prompts=True))
        assert reserve.graph_bytes == num_sizes * 5 * MIB
        engine.reconfigure()
        needs, room = engine._open.carver.needs, engine.memory.budget_bytes - reserve.graph_bytes
        assert engine.memory.graph_bytes == reserve.graph_bytes
        assert engine.memory.num_blocks == min(each.num_blocks(room) for each in needs)
    finally:
        engine.close()


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
def test_the_launches_of_a_captured_step_over_ranks_are_those_predicted(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Collectives among them; of the first rank, which has most."""
    common = {"hidden_size": 256, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    common |= {"num_key_value_heads": 2, "vocab_size": 384, "max_position_embeddings": 64, "torch_dtype": "float32"}
    common |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "rms_norm_eps": 1e-6}
    common |= {"head_dim": 64, "hidden_act": "silu", "tie_word_embeddings": False}
    kind = "llama" if architecture == "LlamaForCausalLM" else "qwen3_moe"
    path = tmp_path / "config.json"
    path.write_text(json.dumps(common | {"architectures": [architecture], "model_type": kind}), encoding="utf-8")
    FakeRanks(monkeypatch, 2)
    limits = {"max_num_batched_tokens": 8, "max_num_seqs": 5, "max_model_len": 48, "tensor_parallel_size": 2}
    engine = Engine(EngineConfig(model=str(path), load_format="dummy", dtype="float32", **limits))
    try:
        graphs = engine.serving.runner.graphs
        assert graphs is not None
        launches = {size: len(graph.calls) for size, graph in graphs._graphs.items()}
        spec = resolve_model(str(path))
        assert launches == {
            size: step_launches(spec, size.num_tokens, has_prompts=size.has_prompts, num_ranks=2) for size in launches
        }
    finally:
        engine.close()


def test_whole_experts_on_each_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5 over 2 ranks; prompts, whose choices are sorted in the first layer, and decoding tokens."""
    config = transformers.Qwen2MoeConfig(
        hidden_size=128, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=2, vocab_size=384,
        max_position_embeddings=64, moe_intermediate_size=24, shared_expert_intermediate_size=48, num_experts=5,
        num_experts_per_tok=2,
    )  # fmt: skip
    model = saved_model(config, tmp_path)
    fake = FakeRanks(monkeypatch, 2)
    prompts = random_prompts(5, 20)
    with LLM(str(tmp_path), **SETTINGS, tensor_parallel_size=2, enable_expert_parallel=True) as llm:
        assert answer(llm, prompts, 3) == greedy(model, prompts, 3)
    for gpu in fake.gpus.values():
        assert {"choose_experts", "sort_pairs", "expert_product", "sum_experts"} <= set(gpu.runtime.launched)


@pytest.mark.parametrize("lost_in", ["sum_inplace", "gather", "a graph"])
def test_a_lost_rank_ends_what_waits_for_it_on_a_gpu(
    gpt2: tuple[Path, torch.nn.Module], lost_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a step, where later collectives fail, and at its end, whose tokens are then no tokens."""
    fake = FakeRanks(monkeypatch, 2)
    is_captured = lost_in == "a graph"
    with LLM(str(gpt2[0]), **SETTINGS, tensor_parallel_size=2, enforce_eager=not is_captured) as llm:
        (follower,) = fake.following

        def end(*_: object) -> None:
            raise EOFError

        if is_captured:
            monkeypatch.setattr(follower._own.graphs, "replay", end)
        else:
            monkeypatch.setattr(follower._collectives, lost_in, end)
        with pytest.raises(RankDied, match=r"^rank 1 of 2 ended with exit code 0\.$"):
            llm.generate([{"prompt_token_ids": [3, 4, 5]}], SamplingParams(max_tokens=1, ignore_eos=True))


def test_fewer_gpus_than_ranks_are_refused(gpt2: tuple[Path, torch.nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRanks(monkeypatch, 1)
    with pytest.raises(EngineError, match="2 ranks need as many GPUs, and there are 1"):
        LLM(str(gpt2[0]), **SETTINGS, tensor_parallel_size=2)

"""Several ranks on a GPU each, as far as no GPU is needed: devices, uploads, collectives and their order, no graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from fake_gpu import MIB
from fake_ranks import FakeRanks, storage_of
from small_models import greedy

from kvplan_engine import LLM, Engine, EngineConfig, EngineError, SamplingParams
from kvplan_engine.errors import RankDied

NUM_TOKENS = 6
SETTINGS = {"dtype": "float32", "max_num_batched_tokens": 32, "max_num_seqs": 4, "max_model_len": 64}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    """Heads of 64, the smallest that the CUDA kernels have: one for each of two ranks."""
    torch.manual_seed(4)
    config = transformers.GPT2Config(n_embd=128, n_head=2, n_layer=2, vocab_size=384, n_positions=64)
    config.initializer_range = 0.2
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    path = tmp_path_factory.mktemp("ranks") / "gpt2"
    model.save_pretrained(path)
    return path, model


@pytest.mark.parametrize(("num_ranks", "num_stages"), [(2, 1), (2, 2)])
def test_each_rank_computes_on_its_own_gpu_and_all_meet_in_the_same_order(
    gpt2: tuple[Path, torch.nn.Module], num_ranks: int, num_stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, model = gpt2
    total = num_ranks * num_stages
    fake = FakeRanks(monkeypatch, total)
    rng = np.random.default_rng(3)
    prompts = [rng.integers(1, 384, length).tolist() for length in (5, 40)]
    with LLM(str(path), **SETTINGS, tensor_parallel_size=num_ranks, pipeline_parallel_size=num_stages) as llm:
        runners = fake.runners(llm.engine.serving.runner)
        assert sorted(fake.gpus) == sorted(runners) == list(range(total))
        for calls in fake.calls.values():
            calls.clear()  # of profile steps, whose workspaces may be others
        uploads = {number: gpu.num_uploads for number, gpu in fake.gpus.items()}
        for gpu in fake.gpus.values():
            gpu.runtime.launched.clear()
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
        assert [output.outputs[0].token_ids for output in outputs] == greedy(model, prompts, NUM_TOKENS)

        for number, runner in runners.items():
            gpu = fake.gpus[number]
            assert runner.device is gpu
            assert gpu.runtime.launched, f"rank {number} computed nothing"
            assert "copy_inputs" in gpu.runtime.launched, f"rank {number} was sent no indices"
            assert gpu.num_uploads == uploads[number], "one launch brings all of them"
            assert runner.graph_sizes == () and gpu.num_captures == 0, "steps over several ranks are not captured"
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
        assert (reserve.total_bytes, reserve.overhead_bytes, reserve.graph_bytes) == (300 * MIB, held, 0)
        engine.reconfigure()
        memory = engine.memory
        assert (memory.device_total_bytes, memory.overhead_bytes) == (300 * MIB, held)
        needs = engine._open.carver.needs
        assert memory.num_blocks == min(each.num_blocks(memory.budget_bytes) for each in needs)
    finally:
        engine.close()


def test_whole_experts_on_each_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5 over 2 ranks; prompts, whose choices are sorted in the first layer, and decoding tokens."""
    torch.manual_seed(4)
    config = transformers.Qwen2MoeConfig(
        hidden_size=128, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=2, vocab_size=384,
        max_position_embeddings=64, moe_intermediate_size=24, shared_expert_intermediate_size=48, num_experts=5,
        num_experts_per_tok=2, initializer_range=0.2,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(tmp_path)
    fake = FakeRanks(monkeypatch, 2)
    prompts = [np.random.default_rng(3).integers(1, 384, length).tolist() for length in (5, 20)]
    with LLM(str(tmp_path), **SETTINGS, tensor_parallel_size=2, enable_expert_parallel=True) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
        assert [output.outputs[0].token_ids for output in outputs] == greedy(model, prompts, 3)
    for gpu in fake.gpus.values():
        assert {"choose_experts", "sort_pairs", "expert_product", "sum_experts"} <= set(gpu.runtime.launched)


@pytest.mark.parametrize("lost_in", ["sum_inplace", "gather"])
def test_a_lost_rank_ends_what_waits_for_it_on_a_gpu(
    gpt2: tuple[Path, torch.nn.Module], lost_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a step, where later collectives fail, and at its end, whose tokens are then no tokens."""
    fake = FakeRanks(monkeypatch, 2)
    with LLM(str(gpt2[0]), **SETTINGS, tensor_parallel_size=2) as llm:
        (follower,) = fake.following

        def end(*_: object) -> None:
            raise EOFError

        monkeypatch.setattr(follower._collectives, lost_in, end)
        with pytest.raises(RankDied, match=r"^rank 1 of 2 ended with exit code 0\.$"):
            llm.generate([{"prompt_token_ids": [3, 4, 5]}], SamplingParams(max_tokens=1, ignore_eos=True))


def test_fewer_gpus_than_ranks_are_refused(gpt2: tuple[Path, torch.nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRanks(monkeypatch, 1)
    with pytest.raises(EngineError, match="2 ranks need as many GPUs, and there are 1"):
        LLM(str(gpt2[0]), **SETTINGS, tensor_parallel_size=2)

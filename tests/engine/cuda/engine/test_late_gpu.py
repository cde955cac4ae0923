"""The engine on a device that runs behind the host, and with states, latents or experts there."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from dense_models import DenseCheckpoint
from engine_answers import answer, logits_behind, random_prompts
from fake_gpu import take_gpu
from late_gpu import LateGpu
from small_models import MAMBA, SIZES, STATES, VOCAB_SIZE, Dense, greedy, saved_model

from kvplan_engine import LLM, SamplingParams
from kvplan_engine.execution.inputs import staging


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, torch.nn.Module]:
    config = transformers.LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=96,
        num_hidden_layers=2,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    path = tmp_path_factory.mktemp("late")
    return str(path), saved_model(config, path)


def run_late(llm: LLM, gpu: LateGpu, prompts: list[list[int]], num_tokens: list[int]) -> list[list[int]]:
    params = [SamplingParams(temperature=0.0, max_tokens=number, ignore_eos=True) for number in num_tokens]
    with gpu.late(llm.engine):
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    return [output.outputs[0].token_ids for output in outputs]


# prompts cut into chunks beside decoding rows, rows that end and rows that take their place, every rung of the ladder
LENGTHS = (1, 9, 30, 17, 5, 3, 26, 2, 11)
NUM_TOKENS = [12, 7, 9, 3, 15, 10, 6, 1, 8]


@pytest.mark.parametrize("settings", [{}, {"enforce_eager": True}], ids=["graphs", "eager"])
def test_tokens_are_the_same_when_the_device_is_late(
    llama: tuple[str, torch.nn.Module],
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, object],
) -> None:
    path, model = llama
    gpu = take_gpu(monkeypatch, LateGpu())
    prompts = random_prompts(*LENGTHS)
    wanted = [greedy(model, [prompt], number)[0] for prompt, number in zip(prompts, NUM_TOKENS, strict=True)]
    sizes = {"max_num_batched_tokens": 32, "max_num_seqs": 4, "max_model_len": 64, "enable_prefix_caching": False}
    llm = LLM(path, dtype="float32", **(sizes | settings))
    assert run_late(llm, gpu, prompts, NUM_TOKENS) == wanted
    stats = llm.get_stats()
    assert stats["num_steps_ahead"] >= 15
    assert stats["num_graph_replays"] == (0 if settings else stats["num_steps"])
    assert gpu.most_queued > 20, "nothing was late"
    assert gpu.num_unpinned_copies == 0, "steps with prompts in them send which rows are sampled"


@pytest.mark.parametrize(("async_scheduling", "temperature"), [(True, 0.8), (False, 0.0)])  # each value of both
def test_a_prompt_in_many_pieces_is_read_as_it_was_written(
    llama: tuple[str, torch.nn.Module], monkeypatch: pytest.MonkeyPatch, temperature: float, async_scheduling: bool
) -> None:
    """A piece that is not a prompt's last samples nobody, so nobody waits for its inputs to be read."""
    gpu = take_gpu(monkeypatch, LateGpu())
    prompt = {"prompt_token_ids": random_prompts(59)[0]}
    params = SamplingParams(temperature=temperature, seed=7, max_tokens=4, ignore_eos=True)
    sizes = {"max_num_batched_tokens": 8, "max_num_seqs": 2, "max_model_len": 64, "enable_prefix_caching": False}
    llm = LLM(llama[0], dtype="float32", async_scheduling=async_scheduling, **sizes)
    wanted = llm.generate([prompt], params)[0].outputs[0].token_ids
    with gpu.late(llm.engine):
        assert llm.generate([prompt], params)[0].outputs[0].token_ids == wanted
    assert gpu.most_queued > 40, "nothing was late"


def test_host_memory_would_be_overwritten_too_early_if_nobody_waited_for_it(
    llama: tuple[str, torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is late enough to see it: with one copy of the inputs in place of two, tokens go wrong."""
    path, model = llama
    gpu = take_gpu(monkeypatch, LateGpu())
    monkeypatch.setattr(staging, "_NUM_COPIES", 1)
    monkeypatch.setattr(staging.InTurn, "fill", lambda self: nullcontext(self._copies[0]))
    prompts = random_prompts(*LENGTHS)
    wanted = [greedy(model, [prompt], number)[0] for prompt, number in zip(prompts, NUM_TOKENS, strict=True)]
    sizes = {"max_num_batched_tokens": 32, "max_num_seqs": 4, "max_model_len": 64, "enable_prefix_caching": False}
    llm = LLM(path, dtype="float32", **sizes)
    assert run_late(llm, gpu, prompts, NUM_TOKENS) != wanted


_WIDE = {"hidden_size": 64, "mamba_n_heads": 8, "num_hidden_layers": 2}
MODELS = {
    "qwen3_next": STATES["qwen3_next"],
    "bamba": replace(MAMBA["bamba"], values=MAMBA["bamba"].values | _WIDE | {"attn_layer_indices": [1]}),
    "deepseek_v3": Dense(
        "DeepseekV3Config",
        SIZES
        | {"num_key_value_heads": 4, "q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "v_head_dim": 16}
        | {"qk_rope_head_dim": 16, "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 2}
        | {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1},
    ),
    "jamba": replace(MAMBA["jamba"], values=MAMBA["jamba"].values | {"hidden_size": 64}),
}
KERNELS = {"qwen3_next": "delta_rule", "bamba": "scan_mamba2", "jamba": "scan_mamba1", "deepseek_v3": "choose_experts"}


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = take_gpu(monkeypatch, LateGpu())
    checkpoint = DenseCheckpoint(name, tmp_path, MODELS)
    llm = LLM(str(checkpoint.path), dtype="float32", max_num_batched_tokens=16, max_num_seqs=4, max_model_len=48)
    prompts = random_prompts(1, 9, 30)
    with gpu.late(llm.engine):
        answers = answer(llm, prompts, 6)
    for prompt, tokens in zip(prompts, answers, strict=True):
        # all at once: transformers' own decoding treats the limits of steps in another way
        assert logits_behind(checkpoint.model, prompt, tokens).argmax(-1).tolist() == tokens
    assert KERNELS[name] in gpu.runtime.launched
    assert gpu.most_queued > 20, "nothing was late"
    stats = llm.get_stats()
    assert stats["num_graph_replays"] == stats["num_steps"] >= 7, "steps with prompts are replayed too"

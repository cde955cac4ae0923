"""The whole engine over the CUDA kernels, run by the emulation: the same code that a GPU runs, up to the launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from engine_answers import answer, random_prompts
from fake_gpu import FakeGpu, take_gpu
from small_models import greedy, saved_model, wide_gpt2

from kvplan.catalog.models import resolve_model
from kvplan.estimate.kvplan.memory import predict
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.settings import ServingSettings
from kvplan_engine import LLM, SamplingParams
from kvplan_engine.attention import cuda_plan
from kvplan_engine.memory.step_buffers import ATTENTION_PARTS

MIXTURES = ("mixtral", "ernie4_5_moe")
LIMITS: dict[str, Any] = {"max_num_batched_tokens": 32, "max_num_seqs": 4, "max_model_len": 64}
NAMES = ("gpt2", "mistral", "qwen3", "cohere", "olmo2", "glm4", *MIXTURES)


@pytest.fixture
def emulated_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A device with a queue, the emulated kernels on it, graphs and overlap as on a GPU."""
    return take_gpu(monkeypatch, FakeGpu())


def _config(name: str) -> transformers.PretrainedConfig:
    """Two layers with heads of 64, the smallest the CUDA kernels have."""
    if name == "gpt2":
        return transformers.GPT2Config(n_embd=128, n_head=2, n_layer=2, vocab_size=384, n_positions=64)
    common = {"hidden_size": 256, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 384}
    common |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    if name == "long":
        return transformers.Qwen3Config(**common | {"max_position_embeddings": 160}, head_dim=64)
    if name == "mistral":
        return transformers.MistralConfig(**common, sliding_window=12, tie_word_embeddings=False)
    if name == "cohere":  # attention and MLP side by side, a norm for each head, neighbours turn
        return transformers.CohereConfig(**common, use_qk_norm=True, logit_scale=0.5, pad_token_id=0)
    if name == "olmo2":  # norms behind the blocks and across all heads
        return transformers.Olmo2Config(**common, tie_word_embeddings=False)
    if name == "glm4":  # half of a head turns
        return transformers.Glm4Config(**common, head_dim=64, attention_bias=True, pad_token_id=0)
    if name == "mixtral":
        return transformers.MixtralConfig(**common, num_local_experts=6, num_experts_per_tok=2)
    if name == "ernie4_5_moe":  # a correction of the router, a shared expert, a layer without experts
        experts = {"moe_num_experts": 8, "moe_k": 3, "moe_num_shared_experts": 1, "moe_layer_start_index": 1}
        return transformers.Ernie4_5_MoeConfig(**common, **experts, moe_intermediate_size=24, moe_layer_end_index=-1)
    return transformers.Qwen3Config(**common, head_dim=64, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, torch.nn.Module]]:
    folder = tmp_path_factory.mktemp("wide")
    made = {}
    for name in (*NAMES, "long"):
        made[name] = (str(folder / name), saved_model(_config(name), folder / name))
    return made


@pytest.mark.parametrize("name", [*NAMES[:-2], pytest.param("mixtral", marks=pytest.mark.exhaustive), NAMES[-1]])
def test_greedy_tokens_are_transformers(
    models: dict[str, tuple[str, torch.nn.Module]], emulated_gpu: FakeGpu, name: str
) -> None:
    path, model = models[name]
    prompts = random_prompts(1, 9, 30, 17)
    llm = LLM(path, dtype="float32", **LIMITS)
    assert llm.engine.model.attention.name == "cuda"
    assert answer(llm, prompts, 6) == greedy(model, prompts, 6)
    assert ("choose_experts" in emulated_gpu.runtime.launched) == (name in MIXTURES)


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_rows_of_logits_begin_where_kernels_read_16_bytes_at_once(
    tmp_path: Path, emulated_gpu: FakeGpu, quantization: str | None
) -> None:
    """A vocabulary of 381, as GPT-2's 50,257 is no multiple of 8: equal tokens, greedy and drawn, and equal bytes."""
    model = wide_gpt2(tmp_path, n_layer=1, vocab_size=381)
    prompts = random_prompts(1, 9, 30, 17, end=381)
    llm = LLM(str(tmp_path), dtype="float32", quantization=quantization, **LIMITS)
    logits = llm.engine.serving.runner.workspace["logits"]
    assert (tuple(logits.shape), logits.stride()) == ((4, 381), (384, 1))
    found, params = answer(llm, prompts, 8), SamplingParams(top_p=0.9, seed=5, max_tokens=8, ignore_eos=True)
    drawn = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    assert all(0 <= token < 381 for output in drawn for token in output.outputs[0].token_ids)
    if quantization is None:
        assert found == greedy(model, prompts, 8)
    asked_settings = ServingSettings(dtype="float32", quantization=quantization or "auto", **LIMITS)
    device = EngineDevice(emulated_gpu.total_bytes, kind="cuda")
    predicted = predict(resolve_model(str(tmp_path)), asked_settings, device)
    assert predicted.activation_bytes == llm.engine.memory.activation_bytes


def test_the_end_of_a_long_prompt_is_cut_and_tokens_are_transformers(
    models: dict[str, tuple[str, torch.nn.Module]],
    emulated_gpu: FakeGpu,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five tokens behind 128 cached ones, in a replayed graph: two blocks for each KV head share what they see."""
    monkeypatch.setattr(cuda_plan, "MIN_PART", 64)
    path, model = models["long"]
    (prompt,) = random_prompts(133)
    sizes = {"max_num_batched_tokens": 32, "max_num_seqs": 1, "max_model_len": 160}
    llm = LLM(path, dtype="float32", **sizes)
    parts = llm.engine.serving.runner.workspace[ATTENTION_PARTS].zero_()
    (output,) = llm.generate([{"prompt_token_ids": prompt}], SamplingParams(temperature=0.0, max_tokens=3))
    assert output.outputs[0].token_ids == greedy(model, [prompt], 3)[0]
    assert parts.any(), "nothing was cut"
    assert llm.engine.get_stats()["num_graph_replays"] == llm.engine.get_stats()["num_steps"]


def test_prompts_by_warp_groups_are_transformers(
    models: dict[str, tuple[str, torch.nn.Module]], emulated_gpu: FakeGpu
) -> None:
    """In chunks behind cached tokens, beside sequences that decode; to float16's rounding."""
    path, model = models["qwen3"]
    prompts = random_prompts(2, 45, 30)
    llm = LLM(path, dtype="float16", attention_backend="cuda_wgmma", **LIMITS)
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, prompt_logprobs=1)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    assert "attention/prefill/prefill_wgmma.cu" in emulated_gpu.runtime.sources
    assert "attention/prefill/prefill_mma.cu" not in emulated_gpu.runtime.sources
    for prompt, output in zip(prompts, outputs, strict=True):
        with torch.no_grad():
            rows = torch.log_softmax(model(torch.tensor([prompt])).logits[0], -1)
        expected = [float(row[token]) for row, token in zip(rows, prompt[1:], strict=False)]
        assert [next(iter(values.values())) for values in output.prompt_logprobs[1:]] == pytest.approx(
            expected, abs=0.05
        )


def test_samples_fork_on_the_device(models: dict[str, tuple[str, torch.nn.Module]], emulated_gpu: FakeGpu) -> None:
    """Copy-on-write goes through the device's own block copy."""
    llm = LLM(models["gpt2"][0], dtype="float32", **LIMITS)
    prompt = {"prompt_token_ids": [5, 6, 7, 8, 9]}
    (together,) = llm.generate([prompt], SamplingParams(n=3, temperature=1.0, seed=11, max_tokens=8, ignore_eos=True))
    (alone,) = llm.generate([prompt], SamplingParams(n=1, temperature=1.0, seed=11, max_tokens=8, ignore_eos=True))
    assert together.outputs[0].token_ids == alone.outputs[0].token_ids
    assert len({tuple(output.token_ids) for output in together.outputs}) > 1

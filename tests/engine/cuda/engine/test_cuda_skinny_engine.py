"""The engine over the emulated kernels with ``linear_backend="cuda_skinny"``: one launch for a product and the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from engine_answers import random_prompts
from fake_gpu import FakeGpu, take_gpu

from kvplan_engine import LLM, SamplingParams
from kvplan_engine.errors import EngineError

COMMON = {"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 384}
COMMON |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
CONFIGS = {
    "llama": transformers.LlamaConfig(**COMMON, head_dim=64, tie_word_embeddings=False),
    # biases everywhere, an activation without a gate, a head that is the embedding too
    "gpt2": transformers.GPT2Config(n_embd=128, n_head=2, n_layer=2, vocab_size=384, n_positions=64),
    # attention beside the MLP: only the MLP's output can be added at once
    "cohere": transformers.CohereConfig(**COMMON, logit_scale=0.5, pad_token_id=0),
    # norms behind the blocks, or a factor: nothing can
    "granite": transformers.GraniteConfig(**COMMON, residual_multiplier=0.5, attention_multiplier=0.125),
    "olmo2": transformers.Olmo2Config(**COMMON, tie_word_embeddings=False),
}
LIMITS: dict[str, Any] = {"max_num_batched_tokens": 24, "max_num_seqs": 4, "max_model_len": 64, "dtype": "float16"}
LENGTHS = (1, 30, 9)
NUM_TOKENS = 5


def prompts() -> list[list[int]]:
    return random_prompts(*LENGTHS)


def make_model(name: str, folder: Path) -> torch.nn.Module:
    torch.manual_seed(4)
    config = CONFIGS[name]
    config.initializer_range = 0.2
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).half().float().eval()
    model.save_pretrained(folder)
    return model


def expected_log_probability(model: torch.nn.Module, tokens: list[int], place: int) -> float:
    """Of token ``place`` behind those before it."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens[:place]])).logits[0, -1]
    return float(torch.log_softmax(logits, -1)[tokens[place]])


def answers(folder: Path, **settings: Any) -> list[tuple[list[int], list[float]]]:
    """The tokens of each prompt and their log-probabilities."""
    llm = LLM(str(folder), linear_backend="cuda_skinny", **LIMITS, **settings)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
    found = []
    for output in llm.generate([{"prompt_token_ids": each} for each in prompts()], params):
        (one,) = output.outputs
        found.append((list(one.token_ids), [next(iter(each.values())) for each in one.logprobs]))
    assert bool(llm.get_stats()["num_graph_replays"]) != settings.get("enforce_eager", False)
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_steps_give_the_models_probabilities(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of few rows, and of more, which torch multiplies; to float16's rounding. Llama's are captured."""
    gpu = take_gpu(monkeypatch, FakeGpu())
    model = make_model(name, tmp_path)
    answered = answers(tmp_path, enforce_eager=name != "llama")
    assert "products/skinny_mma.cu" in gpu.runtime.sources
    assert ("silu_and_mul" in gpu.runtime.launched) == (name != "gpt2"), "of steps with many rows"
    for prompt, (tokens, log_probabilities) in zip(prompts(), answered, strict=True):
        together = [*prompt, *tokens]
        for number, found in enumerate(log_probabilities):
            assert found == pytest.approx(expected_log_probability(model, together, len(prompt) + number), abs=0.05)


def test_eager_steps_give_what_captured_ones_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, though captured decode steps have a row of padding; those with prompts are eager in both."""
    take_gpu(monkeypatch, FakeGpu())
    make_model("llama", tmp_path)
    assert answers(tmp_path, cudagraph_mode="full_decode_only") == answers(tmp_path, enforce_eager=True)


def test_a_cpu_has_no_such_products(tmp_path: Path) -> None:
    make_model("llama", tmp_path)
    with pytest.raises(EngineError, match="linear_backend 'cuda_skinny' is for a GPU"):
        LLM(str(tmp_path), device="cpu", linear_backend="cuda_skinny", max_model_len=64)

"""Small random models of every native architecture, saved as checkpoints, and what transformers answers with them."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

VOCAB_SIZE = 384
_SIZES = {"hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3, "vocab_size": VOCAB_SIZE}


def _config(name: str) -> transformers.PretrainedConfig:
    if name == "gpt2":
        return transformers.GPT2Config(
            n_embd=64, n_head=4, n_layer=3, vocab_size=VOCAB_SIZE, n_positions=256, bos_token_id=0, eos_token_id=0
        )
    common = {**_SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    common |= {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False}
    if name == "llama":
        scaling = {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 10000.0,
        }
        return transformers.LlamaConfig(**common, rope_parameters=scaling, attention_bias=True, mlp_bias=True)
    if name == "llama-tied":
        common |= {"tie_word_embeddings": True, "hidden_size": 96, "num_attention_heads": 6}
        return transformers.LlamaConfig(**common)
    if name == "mistral":
        return transformers.MistralConfig(**common, sliding_window=48)
    if name == "qwen2":
        return transformers.Qwen2Config(**common)
    if name == "qwen3":
        return transformers.Qwen3Config(**common, head_dim=16)
    if name == "glm4":
        return transformers.Glm4Config(**common, head_dim=32, attention_bias=True, pad_token_id=0)
    if name == "gpt_neox":
        common |= {"num_key_value_heads": None, "use_parallel_residual": True, "hidden_act": "gelu_new"}
        return transformers.GPTNeoXConfig(**common)
    raise AssertionError(name)


ARCHITECTURES = ("gpt2", "llama", "llama-tied", "mistral", "qwen2", "qwen3")
OTHER_KINDS = ("glm4", "gpt_neox")
"""Norms behind blocks and neighbours that turn; attention and MLP side by side. They run through the matrix alone."""


class Checkpoint:
    """A saved random model: ``path`` for the engine, ``model`` for transformers."""

    def __init__(self, name: str, folder: Path) -> None:
        torch.manual_seed((*ARCHITECTURES, *OTHER_KINDS).index(name))
        config = _config(name)
        # a wide initial spread, so that the next token is decided by more than rounding
        config.initializer_range = 0.2
        self.name = name
        self.model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():  # biases begin at 0 and norms at 1, so that one that is forgotten would not show
            for parameter in self.model.parameters():
                if parameter.ndim == 1:
                    parameter += 0.3 * torch.randn_like(parameter)
        self.path = folder / name
        self.model.save_pretrained(self.path)


def greedy(model: torch.nn.Module, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """What transformers' generate answers to each prompt alone."""
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=model.device)
        with torch.no_grad():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
            )
        answers.append(out[0, len(prompt) :].tolist())
    return answers

"""Small random models of every architecture that runs, saved as checkpoints, and what transformers answers with them.

``tests/data/small_families.json`` has a row for each: the table that tests take it from, and what transformers makes.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB_SIZE = 384
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "vocab_size": VOCAB_SIZE,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
"""Of a row that is not ``whole``, besides its values."""


@dataclass(frozen=True, slots=True)
class Dense:
    """config: the name of transformers' class, and what it is made with.

    shortest: of the prompts that it answers. zero: parameters with one of these in their names are 0. renamed: of a
    family without a class in transformers, which computes as one that has: its own config, and how its tensors differ.
    """

    config: str
    values: dict[str, Any] = field(default_factory=dict)
    shortest: int = 1
    zero: tuple[str, ...] = ()
    renamed: dict[str, Any] | None = None

    def made(self) -> transformers.PretrainedConfig:
        """Return a config of the class, which shares nothing with others."""
        config: transformers.PretrainedConfig = getattr(transformers, self.config)(**copy.deepcopy(self.values))
        return config


def _values(values: dict[str, Any], *, whole: bool = False) -> dict[str, Any]:
    return values if whole else SIZES | values


def _model(row: dict[str, Any]) -> Dense:
    renamed = row.get("renamed")
    if renamed is not None:
        renamed = renamed | {"config": _values(renamed["config"], whole=renamed.get("whole", False))}
    values = _values(row["values"], whole=row.get("whole", False))
    return Dense(row["config"], values, row.get("shortest", 1), tuple(row.get("zero", ())), renamed)


TABLES: dict[str, dict[str, Dense]] = {}
for _row in json.loads((Path(__file__).parents[2] / "data" / "small_families.json").read_text(encoding="utf-8")):
    TABLES.setdefault(_row["table"], {})[_row["name"]] = _model(_row)
DENSE, RENAMED, MIXTURES, LATENTS = (TABLES[name] for name in ("dense", "renamed", "mixtures", "latents"))
WINDOWED, MAMBA, STATES = (TABLES[name] for name in ("windowed", "mamba", "states"))
ARCHITECTURES = ("gpt2", "llama", "llama-tied", "mistral", "qwen2", "qwen3")
OTHER_KINDS = ("glm4", "gpt_neox")
"""Norms behind blocks and neighbours that turn; attention and MLP side by side. They run through the matrix alone."""


class Checkpoint:
    """A saved random model of the table "small": ``path`` for the engine, ``model`` for transformers."""

    def __init__(self, name: str, folder: Path) -> None:
        torch.manual_seed((*ARCHITECTURES, *OTHER_KINDS).index(name))
        config = TABLES["small"][name].made()
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


def saved_model(config: transformers.PretrainedConfig, folder: Path) -> torch.nn.Module:
    """Return a random model of ``config``, saved into ``folder``: its tokens are decided by more than rounding."""
    torch.manual_seed(4)
    config.initializer_range = 0.2
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(folder)
    return model


def wide_gpt2(folder: Path, **sizes: int) -> torch.nn.Module:
    """As ``saved_model``: heads of 64, the smallest that the CUDA kernels have, in two layers."""
    usual = {"n_embd": 128, "n_head": 2, "n_layer": 2, "vocab_size": VOCAB_SIZE, "n_positions": 64}
    return saved_model(transformers.GPT2Config(**usual | sizes), folder)


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

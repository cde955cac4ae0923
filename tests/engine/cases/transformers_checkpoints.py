"""Small random models of every class of transformers that a test's table names, and an engine's answers beside them.

An engine of each answers with everything at once: ragged prompts, more than may run, longer than a step's budget, in
blocks of three tokens, in a small pool; and once more, from the prefix cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from engine_answers import check_likeliest, drawn_prompts, hold_blocks, small_llm
from small_models import ARCHITECTURES, TABLES

from kvplan_engine import LLM

_SPREAD = 0.15
"""Of weights: with transformers' own 0.02 the likeliest tokens would be near ties."""
_LONGEST = 96


def tabled_models() -> dict[str, tuple[str, dict[str, Any]]]:
    """The models of the equality tests' tables: transformers' class of configs, and what it is made with."""
    found = {name: TABLES["small"][name] for name in ARCHITECTURES}
    for table in ("others", "dense", "latents", "mamba", "mixtures", "states", "windowed"):
        found |= TABLES[table]
    return {name: (model.config, model.values) for name, model in found.items()}


def small_checkpoint(config: Any, folder: Path) -> Any:
    """A random model of ``config`` of transformers in evaluation mode, saved into ``folder``."""
    torch.manual_seed(1)
    config.initializer_range = _SPREAD
    model = _class_of(config)(config).float().eval()
    with torch.no_grad():  # what begins at 0 or 1 would not show if it were forgotten
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" not in name and (tensor.ndim == 1 or not tensor.any()) and tensor.is_floating_point():
                tensor += 0.3 * torch.randn_like(tensor)
    model.save_pretrained(folder)
    return model


def _class_of(config: Any) -> Any:
    names = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    usual = type(config).__name__.replace("Config", "ForCausalLM")
    return getattr(transformers, names.get(config.model_type, usual))


def config_of(name: str, values: dict[str, Any]) -> Any:
    """A config of transformers' class ``name``."""
    return getattr(transformers, name)(**values)


def engine_of(path: Path, **settings: Any) -> LLM:
    """An engine whose pool holds little more than one of the longest sequences."""
    usual = {"device_memory": "384MiB", "max_num_batched_tokens": 24, "max_num_seqs": 4, "max_model_len": _LONGEST}
    llm = small_llm(path, **usual | {"block_size": 3, "model_impl": "transformers"} | settings)
    hold_blocks(llm, int(1.3 * llm.engine.scheduler.pool.layout.blocks_for(_LONGEST, 24) + 1.5))
    return llm


def check_answers(model: Any, llm: LLM, lengths: tuple[int, ...], num_tokens: int) -> None:
    """Each token is the likeliest after those before, by the class alone, with its log-probability."""
    check_likeliest(model, llm, drawn_prompts(lengths), num_tokens)


def check_class(
    config: Any, folder: Path, lengths: tuple[int, ...] = (1, 5, 17, 40, 70, 33), num_tokens: int = 10
) -> LLM:
    """The engine that answered as a random model of ``config`` does; its last prompts came from the prefix cache."""
    model = small_checkpoint(config, folder)
    llm = engine_of(folder)
    for each in (lengths, lengths[-1:], lengths[-1:]):
        check_answers(model, llm, each, num_tokens)
    return llm

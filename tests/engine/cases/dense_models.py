"""The small random models of the families' tables, saved as checkpoints: by transformers, or renamed from a twin."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from small_models import DENSE, RENAMED, Dense

Tensors = dict[str, torch.Tensor]
_MEANT_FOR_OTHERS = {
    "olmo_hybrid": (re.compile(r"(layers\.3\.)feedforward_layer_norm"), r"\1post_attention_layernorm"),
    "kimi_linear": (re.compile(r"block_sparse_moe\.(\w+_proj)"), r"mlp.\1"),
}
"""What transformers' conversion also applies to layers whose tensors are not called so: of attention, of dense MLPs."""


def _fused(tensors: Tensors, name: str, num_groups: int) -> Tensors:
    """q_proj, k_proj and v_proj as one tensor called ``name``, each in so many parts that alternate."""
    fused = dict(tensors)
    for query in [each for each in tensors if "q_proj" in each]:
        parts = [fused.pop(query.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
        pieces = [part.unflatten(0, (num_groups, -1)) for part in parts]
        fused[query.replace("self_attn.q_proj", name)] = torch.cat(pieces, dim=1).flatten(0, 1)
    return fused


def _gates_of_half(tensors: Tensors) -> Tensors:
    """Shared experts without their gates, which are 0: a sigmoid of 0 halves their outputs."""
    kept = {name: tensor for name, tensor in tensors.items() if "shared_expert_gate" not in name}
    return {name: tensor * (0.5 if "shared_expert.down" in name else 1.0) for name, tensor in kept.items()}


def renamed_tensors(tensors: Tensors, how: Mapping[str, Any]) -> Tensors:
    """The tensors of a family from its twin's. how: the row's ``renamed``, whose steps are taken in this order."""
    if how.get("halve_gates"):
        tensors = _gates_of_half(tensors)
    if "fuse" in how:
        tensors = _fused(tensors, how["fuse"], 2 if how.get("by_group") else 1)  # two KV heads
    found = {}
    for name, tensor in tensors.items():
        if not name.startswith(tuple(how.get("leave_out", ()))):
            for old, new in how.get("replace", {}).items():
                name = name.replace(old, new)
            found[name] = tensor
    return found


def as_published(name: str, folder: Path) -> None:
    """Give the tensors of a saved checkpoint the names that published ones have."""
    if name in _MEANT_FOR_OTHERS:
        pattern, ours = _MEANT_FOR_OTHERS[name]
        file = folder / "model.safetensors"
        save_file({pattern.sub(ours, key): tensor for key, tensor in load_file(file).items()}, file)


def randomise(model: torch.nn.Module, zero: tuple[str, ...] = ()) -> None:
    """Weights that decide the next token by more than rounding; norms begin at 1 and biases at 0, which would hide.

    zero: parameters with one of these in their names become 0.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.15 if parameter.ndim > 1 else 0.3
            center = parameter if parameter.ndim == 1 else torch.zeros(())
            parameter.copy_(center + spread * torch.randn_like(parameter))
        for name, parameter in model.named_parameters():
            if any(part in name for part in zero):
                parameter.zero_()
        for name, buffer in model.named_buffers():
            if "correction" in name:
                buffer.copy_(0.3 * torch.randn_like(buffer))
            elif "layer_scalar" in name:
                buffer.uniform_(0.5, 1.5)


class DenseCheckpoint:
    """A saved random model: ``path`` for the engine, ``model`` for transformers."""

    def __init__(self, name: str, folder: Path, others: Mapping[str, Dense] | None = None) -> None:
        torch.manual_seed([*DENSE, *RENAMED, *(others or {})].index(name))
        dense = {**DENSE, **(others or {}), **RENAMED}[name]
        config = dense.made()
        self.shortest = dense.shortest
        auto = transformers.AutoModelForCausalLM
        if type(config) in auto._model_mapping:
            self.model = auto.from_config(config, dtype=torch.float32).eval()
        else:
            self.model = getattr(transformers, dense.config.replace("Config", "ForCausalLM"))(config).eval()
        randomise(self.model, dense.zero)
        self.path = folder / name
        self.model.save_pretrained(self.path)
        if dense.renamed is not None:
            tensors = renamed_tensors(load_file(self.path / "model.safetensors"), dense.renamed)
            save_file(tensors, self.path / "model.safetensors")
            (self.path / "config.json").write_text(json.dumps(dense.renamed["config"]), encoding="utf-8")

"""SmolLM3: Llama in which every fourth layer has no positions."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.dense.llama import llama_layer
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import decoder, rope, window
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.mixers import FULL
from kvplan_engine.description.model import ModelDescription


def _read(config: dict[str, Any]) -> ModelDescription:
    number = int(config["num_hidden_layers"])
    interval = int(config.get("no_rope_layer_interval", 4))
    turns = config.get("no_rope_layers") or [int((index + 1) % interval != 0) for index in range(number)]
    kept = window(config.get("sliding_window")) if config.get("use_sliding_window") else FULL
    types = config.get("layer_types") or ["full_attention" if turn else "sliding_attention" for turn in turns]
    kinds = {
        (bool(turn), kind): llama_layer(
            config,
            rope=rope(config, theta=2000000.0) if turn else None,
            kept=kept if kind == "sliding_attention" else FULL,
        )
        for turn, kind in zip(turns, types, strict=True)
    }
    layers = [kinds[bool(turn), kind] for turn, kind in zip(turns, types, strict=True)]
    return decoder(config, layers, layers[0].norms, max_positions=32768, tied=True)


SMOLLM3 = Family(("SmolLM3ForCausalLM",), ("smollm3",), _read, TensorNames())

"""Small random models with a layer for multi-token prediction, and what it drafts, in torch.

The model is made with a layer more than it has: that one is the MTP layer, with the names that a checkpoint gives it.
Layers add little to the embedding and the MTP layer passes the next token's on, so that some drafts are right.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from small_models import LATENTS, MIXTURES, SIZES

_GAIN, _EMBEDDING, _NOISE = 0.2, 8.0, 0.02
"""Of what layers add to the stream, of the embedding, and in the projection: by these some of the drafts are right."""


@dataclass(frozen=True, slots=True)
class MultiToken:
    """transformers: the class of the config. names: of the layer and of its three norms, and of its projection."""

    transformers: str
    values: dict[str, Any]
    architecture: str
    layer: str
    names: tuple[str, str, str, str] = ("enorm", "hnorm", "shared_head.norm", "eh_proj")
    hidden_first: bool = False
    hands_on_normed: bool = True


MULTI_TOKEN = {
    "mimo": MultiToken(
        "Qwen2Config",
        SIZES,
        "MiMoForCausalLM",
        "model.mtp_layers.0",
        ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_proj"),
        hidden_first=True,
    ),
    "deepseek_v3": MultiToken(
        "DeepseekV3Config", LATENTS["deepseek_v3"].values, "DeepseekV3ForCausalLM", "model.layers.{}"
    ),
    "deepseek_v32": MultiToken(
        "DeepseekV32Config", LATENTS["deepseek_v32"].values, "DeepseekV32ForCausalLM", "model.layers.{}"
    ),
    "glm4_moe": MultiToken(
        "Glm4MoeConfig",
        MIXTURES["glm4_moe"].values,
        "Glm4MoeForCausalLM",
        "model.layers.{}",
        hands_on_normed=False,
    ),
    "glm4_moe_lite": MultiToken(
        "Glm4MoeLiteConfig",
        LATENTS["glm4_moe_lite"].values,
        "Glm4MoeLiteForCausalLM",
        "model.layers.{}",
        hands_on_normed=False,
    ),
    "hy_v3": MultiToken(
        "HYV3Config",
        MIXTURES["hy_v3"].values,
        "HYV3ForCausalLM",
        "model.layers.{}",
        ("enorm", "hnorm", "final_layernorm", "eh_proj"),
    ),
}


class MultiTokenCheckpoint:
    """A saved random model: ``path`` for the engine, ``model`` for transformers, without the MTP layer."""

    def __init__(self, name: str, folder: Path) -> None:
        self.row = row = MULTI_TOKEN[name]
        torch.manual_seed(len(name))
        number = row.values["num_hidden_layers"]
        config = getattr(transformers, row.transformers)(**row.values | {"num_hidden_layers": number + 1})
        config.initializer_range = 0.2
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if parameter.ndim == 1:
                    parameter += 0.3 * torch.randn_like(parameter)
                elif parameter_name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
                    parameter *= _GAIN
                elif parameter_name.endswith("embed_tokens.weight"):
                    parameter *= _EMBEDDING
        self.path = folder / name
        model.save_pretrained(self.path)
        self._layer, self.model = model.model.layers[number], model
        model.model.layers = model.model.layers[:number]
        model.config.num_hidden_layers = number
        width = config.hidden_size
        self._norms = [1.0 + 0.3 * torch.randn(width) for _ in range(3)]
        self._projection = _NOISE * torch.randn(width, 2 * width)
        self._projection[:, width if row.hidden_first else 0 :][:, :width] += torch.eye(width)
        self._save(number)

    def _save(self, number: int) -> None:
        """Name the last layer as the checkpoint does, with its norms and its projection."""
        file, layer = self.path / "model.safetensors", self.row.layer.format(number)
        tensors = {
            name.replace(f"model.layers.{number}.", f"{layer}."): tensor for name, tensor in load_file(file).items()
        }
        own = (*self._norms, self._projection)
        tensors |= {f"{layer}.{name}.weight": tensor for name, tensor in zip(self.row.names, own, strict=True)}
        save_file(tensors, file, metadata={"format": "pt"})
        config = json.loads((self.path / "config.json").read_text())
        config |= {"architectures": [self.row.architecture], "num_hidden_layers": number, "num_nextn_predict_layers": 1}
        (self.path / "config.json").write_text(json.dumps(config))

    @torch.no_grad()
    def drafts(self, token_ids: list[int], number: int) -> list[int]:
        """What is drafted behind ``token_ids``, whose last one the model has not computed. Everything is computed anew.

        As vLLM 0.33.0 has it: mimo_mtp.py and others, and their speculator's repeated passes.
        """
        inner, row = self.model.model, self.row
        hidden = inner(torch.tensor([token_ids[:-1]])).last_hidden_state[0]
        following, drafts = token_ids[1:], []
        for _ in range(number):
            embedded = inner.embed_tokens(torch.tensor(following)).clone()
            embedded[0] = 0.0  # of position 0
            both = [self._normalised(embedded, 0), self._normalised(hidden, 1)]
            stream = torch.cat(both[::-1] if row.hidden_first else both, dim=-1) @ self._projection.T
            stream = self._run_layer(stream)
            normed = self._normalised(stream, 2)
            drafts.append(int(self.model.lm_head(normed[-1]).argmax()))
            handed_on = normed if row.hands_on_normed else stream
            hidden, following = torch.cat([hidden, handed_on[-1:]]), [*following, drafts[-1]]
        return drafts

    def _normalised(self, rows: torch.Tensor, index: int) -> torch.Tensor:
        scale = torch.rsqrt(rows.square().mean(-1, keepdim=True) + self.model.config.rms_norm_eps)
        return rows * scale * self._norms[index]

    def _run_layer(self, stream: torch.Tensor) -> torch.Tensor:
        """The decoder layer over a whole sequence [T, H], each position from those before it."""
        number = stream.shape[0]
        positions = torch.arange(number)[None]
        mask = torch.full((number, number), torch.finfo(stream.dtype).min).triu(1)[None, None]
        angles = self.model.model.rotary_emb(stream[None], positions)
        out = self._layer(stream[None], attention_mask=mask, position_ids=positions, position_embeddings=angles)
        return (out[0] if isinstance(out, tuple) else out).view(number, -1)

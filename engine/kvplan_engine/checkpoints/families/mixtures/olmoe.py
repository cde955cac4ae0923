"""OLMoE, and FlexOlmo with norms behind its blocks: both normalise all queries, and all keys, at once."""

from __future__ import annotations

from kvplan_engine.checkpoints.families.common import Config, attention, mlp, norms, rope
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.gguf import OLMOE_GGUF
from kvplan_engine.checkpoints.families.mixtures.parts import QWEN_NAMES, decoder, whole
from kvplan_engine.checkpoints.fields import head_size
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.norms import NormPlaces
from kvplan_engine.errors import EngineError


def _read(config: Config, places: NormPlaces, eps: float, theta: float) -> ModelDescription:
    if config.get("clip_qkv") is not None:
        raise EngineError("the engine does not clip queries, keys and values (clip_qkv).")
    mixture = Mixture(
        whole(config, "num_experts", "num_local_experts"),
        whole(config, "num_experts_per_tok"),
        mlp(config, bias=False),
        normalised=bool(config.get("norm_topk_prob", False)),
    )
    norm = norms({"rms_norm_eps": eps, **config}, places=places)
    return decoder(
        config,
        norm,
        attention(config, rope=rope(config, head_size(config), theta=theta), head_norm="all"),
        mixture,
        max_positions=4096,
    )


def read_olmoe(config: Config) -> ModelDescription:
    """transformers: OlmoeModel."""
    return _read(config, "before", 1e-5, 1e4)


def read_flex_olmo(config: Config) -> ModelDescription:
    """transformers: FlexOlmoModel."""
    return _read(config, "after", 1e-6, 5e5)


FAMILIES = (
    Family(("OlmoeForCausalLM",), ("olmoe",), read_olmoe, QWEN_NAMES, gguf=OLMOE_GGUF),
    Family(("FlexOlmoForCausalLM",), ("flex_olmo",), read_flex_olmo, QWEN_NAMES),
)

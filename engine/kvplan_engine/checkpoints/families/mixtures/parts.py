"""What families with experts share: the usual keys and names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import Config, attention, mlp, whole
from kvplan_engine.checkpoints.families.family import LLAMA_CPP_NAMES, Gguf, rope_scaling
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.feed_forward import Mixture, Mlp, Scoring
from kvplan_engine.description.mixers import FULL, Attention, Kept

QWEN_NAMES = TensorNames(
    inside={
        "router": "mlp.gate",
        "correction": "mlp.gate.e_score_correction_bias",
        "experts.up": ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj"),
        "experts.down": "mlp.experts.{}.down_proj",
        "shared.up": ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
        "shared.down": "mlp.shared_experts.down_proj",
    }
)
"""Most families' names, ``{}`` being an expert's number."""

MIXTRAL_NAMES = TensorNames(
    inside={
        "router": "block_sparse_moe.gate",
        "correction": "block_sparse_moe.e_score_correction_bias",
        "experts.up": ("block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3"),
        "experts.down": "block_sparse_moe.experts.{}.w2",
    }
)
"""Mixtral's, which others took over."""


def with_names(names: TensorNames, **parts: str | tuple[str, ...]) -> TensorNames:
    """``names`` with some of a layer's parts called otherwise; "__" in a keyword stands for the part's dot."""
    return replace(names, inside={**names.inside, **{part.replace("__", "."): name for part, name in parts.items()}})


def shared_mlp(config: Config, size: int) -> Mlp | None:
    """The shared expert; None of size 0."""
    return mlp(config, size) if size else None


def grouped_sigmoid(config: Config, *, normalised: bool = True, shared: int = 0) -> Mixture:
    """DeepSeek V3's routing with its keys. normalised, shared (experts): where the config does not say."""
    size = whole(config, "moe_intermediate_size", "intermediate_size")
    return Mixture(
        whole(config, "n_routed_experts", "num_local_experts", "num_experts"),
        int(config["num_experts_per_tok"]),
        mlp(config, size, bias=False),
        scoring="sigmoid",
        normalised=bool(config.get("norm_topk_prob", normalised)),
        scale=float(config.get("routed_scaling_factor") or 1.0),
        correction=True,
        num_groups=whole(config, "n_group", default=1),
        top_groups=whole(config, "topk_group", default=1),
        shared=shared_mlp(config, size * whole(config, "n_shared_experts", default=shared)),
    )


def bailing_mixture(
    config: Config, *, scoring: Scoring = "softmax", scale: float = 1.0, correction: bool = False, shared: int = 0
) -> Mixture:
    """Bailing's keys, which Sarvam took over. The others: where the config does not say."""
    size = int(config["moe_intermediate_size"])
    shared_size = whole(config, "moe_shared_expert_intermediate_size", default=size)
    given = config.get("score_function")
    return Mixture(
        whole(config, "num_experts"),
        whole(config, "num_experts_per_tok"),
        mlp(config, size, bias=False),
        scoring=given if given in ("softmax", "sigmoid") else scoring,
        normalised=bool(config.get("norm_topk_prob", True)),
        scale=float(config.get("routed_scaling_factor") or scale),
        correction=bool(config.get("moe_router_enable_expert_bias", correction)),
        num_groups=whole(config, "n_group", default=1),
        top_groups=whole(config, "topk_group", default=1),
        shared=shared_mlp(
            {**config, "mlp_bias": False}, shared_size * whole(config, "num_shared_experts", default=shared)
        ),
    )


def with_late_windows(config: Config, **options: Any) -> list[Attention]:
    """Attention of each layer, with Qwen's windows. options: as for ``common.attention``."""
    return [attention(config, kept=kept, **options) for kept in _late_windows(config)]


def _late_windows(config: Config) -> list[Kept]:
    """Windows with ``use_sliding_window``, from layer ``max_window_layers`` on, or as ``layer_types`` says."""
    number, tokens = int(config["num_hidden_layers"]), config.get("sliding_window")
    if not config.get("use_sliding_window") or not tokens:
        return [FULL] * number
    first = whole(config, "max_window_layers", default=28)
    types = config.get("layer_types") or [
        "sliding_attention" if index >= first else "full_attention" for index in range(number)
    ]
    kept = Kept("window", int(tokens))
    return [kept if kind == "sliding_attention" else FULL for kind in types[:number]]


# Mixtures of experts in GGUF files, whose metadata leaves out what llama.cpp knows by a model's architecture.
#
# Whether chosen weights are normalised (norm_w of build_moe_ffn), and which size an expert has where the file does not
# say: src/models/qwen2moe.cpp (623ac8d), qwen3moe.cpp (069be0a) and olmoe.cpp (82234e0) of llama.cpp, 2026.


def _counts(own: dict[str, Any], experts: str) -> dict[str, Any]:
    return {experts: own["expert_count"], "num_experts_per_tok": own["expert_used_count"]}


def _mixtral_keys(own: dict[str, Any]) -> dict[str, Any]:
    size = own.get("expert_feed_forward_length") or own["feed_forward_length"]
    return _counts(own, "num_local_experts") | {"intermediate_size": size}


def _olmoe_keys(own: dict[str, Any]) -> dict[str, Any]:
    return _counts(own, "num_experts") | {"norm_topk_prob": False}


def _expert_size(own: dict[str, Any]) -> int:
    return int(own.get("expert_feed_forward_length") or own["feed_forward_length"] // own["expert_used_count"])


def _qwen2_moe_keys(own: dict[str, Any]) -> dict[str, Any]:
    return _counts(own, "num_experts") | {
        "moe_intermediate_size": _expert_size(own),
        "shared_expert_intermediate_size": own.get("expert_shared_feed_forward_length") or own["feed_forward_length"],
        "norm_topk_prob": False,
    }


def _qwen3_moe_keys(own: dict[str, Any]) -> dict[str, Any]:
    return _counts(own, "num_experts") | {"moe_intermediate_size": _expert_size(own), "norm_topk_prob": True}


def _gpt_oss_keys(own: dict[str, Any]) -> dict[str, Any]:
    """Its published config does not round where YaRN's ramp begins and ends; no metadata says so."""
    keys = _counts(own, "num_local_experts") | {
        "intermediate_size": own["expert_feed_forward_length"],
        "sliding_window": own["attention.sliding_window"],
    }
    scaling = rope_scaling(own)
    return keys | ({} if scaling is None else {"rope_scaling": scaling | {"truncate": False}})


MIXTRAL_GGUF = Gguf("llama", has_experts=True, pairs_side_by_side=True, keys=_mixtral_keys)
QWEN2_MOE_GGUF = Gguf("qwen2moe", has_experts=True, keys=_qwen2_moe_keys)
QWEN3_MOE_GGUF = Gguf("qwen3moe", has_experts=True, keys=_qwen3_moe_keys)
OLMOE_GGUF = Gguf("olmoe", has_experts=True, keys=_olmoe_keys)
_GPT_OSS_NAMES = replace(
    LLAMA_CPP_NAMES,
    mlp_norm="post_attention_norm",
    inside={**LLAMA_CPP_NAMES.inside, "sinks": "attn_sinks.weight"},
)
GPT_OSS_GGUF = Gguf("gpt-oss", _GPT_OSS_NAMES, has_experts=True, may_have_attention_bias=True, keys=_gpt_oss_keys)

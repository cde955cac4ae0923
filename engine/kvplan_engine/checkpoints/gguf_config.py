"""A config.json's keys, from the header of a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvplan_engine.checkpoints.families import FAMILIES
from kvplan_engine.checkpoints.families.family import Family, Gguf
from kvplan_engine.checkpoints.gguf_header import GgufFile, read_gguf
from kvplan_engine.errors import EngineError


def read_gguf_config(path: Path) -> dict[str, Any]:
    """What the file says of its model. EngineError when it is not one the engine loads."""
    file = read_gguf(path)
    family, gguf = _family_in(path, file.metadata)
    prefix = f"{gguf.architecture}."
    own = {name.removeprefix(prefix): value for name, value in file.metadata.items() if name.startswith(prefix)}
    config = _shared_keys(own, file, gguf) | {"architectures": [family.architectures[0]]}
    scaling = _rope_scaling(own, path.name)
    if scaling is not None:
        config["rope_scaling"] = scaling
    return config | ({} if gguf.keys is None else gguf.keys(own))


def _shared_keys(own: dict[str, Any], file: GgufFile, gguf: Gguf) -> dict[str, Any]:
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    query_bias = f"{gguf.names.layer.format(0)}.{gguf.names.qkv[0]}.bias"
    return {
        "num_hidden_layers": own["block_count"],
        "hidden_size": own["embedding_length"],
        "intermediate_size": own["feed_forward_length"],
        "num_attention_heads": own["attention.head_count"],
        "num_key_value_heads": own.get("attention.head_count_kv"),
        "head_dim": own.get("attention.key_length"),
        "rms_norm_eps": own["attention.layer_norm_rms_epsilon"],
        "rope_theta": own.get("rope.freq_base"),
        "max_position_embeddings": own["context_length"],
        "vocab_size": int(shapes[f"{gguf.names.embedding}.weight"][1]),
        "tie_word_embeddings": f"{gguf.names.head}.weight" not in shapes,
        "attention_bias": gguf.may_have_attention_bias and query_bias in shapes,
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "bfloat16",
    }


def _rope_scaling(own: dict[str, Any], name: str) -> dict[str, Any] | None:
    """``rope_scaling`` as config.json has it; None where there is none."""
    kind = own.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise EngineError(f"{name} scales RoPE by '{kind}', which the engine does not read from GGUF files.")
    scaling = {"rope_type": kind, "factor": float(own["rope.scaling.factor"])}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = own["rope.scaling.original_context_length"]
    return scaling


def _family_in(path: Path, metadata: dict[str, Any]) -> tuple[Family, Gguf]:
    architecture = metadata.get("general.architecture")
    known = {family.gguf.architecture: (family, family.gguf) for family in FAMILIES if family.gguf is not None}
    if architecture not in known:
        raise EngineError(
            f"{path.name} is a GGUF of architecture '{architecture}', which the engine does not load.",
            hint="it loads " + ", ".join(sorted(known)),
        )
    return known[architecture]

"""A config.json's keys, from the header of a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvplan_engine.checkpoints.families import FAMILIES
from kvplan_engine.checkpoints.families.family import Family, Gguf, rope_scaling
from kvplan_engine.checkpoints.gguf_header import GgufFile, read_gguf
from kvplan_engine.errors import EngineError


def read_gguf_config(path: Path) -> dict[str, Any]:
    """What the file says of its model. EngineError when it is not one the engine loads."""
    file = read_gguf(path)
    family, gguf = _family_in(path, file.metadata)
    prefix = f"{gguf.architecture}."
    own = {name.removeprefix(prefix): value for name, value in file.metadata.items() if name.startswith(prefix)}
    _check_layers(path, own, file)
    try:
        config = _shared_keys(own, file, gguf) | {"architectures": [family.architectures[0]]}
        scaling = rope_scaling(own)
        if scaling is not None:
            config["rope_scaling"] = scaling
        return config | ({} if gguf.keys is None else gguf.keys(own))
    except KeyError as missing:
        raise EngineError(
            f"{path.name} says nothing of {missing}, without which a GGUF of {gguf.architecture} is not loaded.",
            hint="download it again, or convert it with a newer llama.cpp",
        ) from None
    except (TypeError, ValueError, ArithmeticError, IndexError, AttributeError) as problem:
        raise EngineError(f"the metadata of {path.name} is malformed: {problem}.", hint="download it again") from None


def _check_layers(path: Path, own: dict[str, Any], file: GgufFile) -> None:
    """EngineError for more layers than there are tensors: a description of as many would fill the memory."""
    number = own.get("block_count", 1)
    if type(number) is not int or not 0 < number <= len(file.tensors):
        raise EngineError(
            f"{path.name} says that it has {str(number)[:40]} layers, and holds {len(file.tensors):,} tensors.",
            hint="download it again",
        )


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


def _family_in(path: Path, metadata: dict[str, Any]) -> tuple[Family, Gguf]:
    architecture = metadata.get("general.architecture")
    known = [(family, family.gguf) for family in FAMILIES if family.gguf is not None]
    has_experts = bool(metadata.get(f"{architecture}.expert_count"))
    found = [each for each in known if each[1].architecture == architecture and each[1].has_experts == has_experts]
    if not found:
        what = f"a GGUF of architecture '{architecture}'" + (" with experts" if has_experts else "")
        raise EngineError(
            f"{path.name} is {what}, which the engine does not load.",
            hint="it loads " + ", ".join(sorted({gguf.architecture for _, gguf in known})),
        )
    return found[0]

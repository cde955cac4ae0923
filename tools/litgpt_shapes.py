"""litgpt's model shapes as configs: another project's record of the same published models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "tests" / "data" / "litgpt_shapes.json"
TIED = ("google/gemma", "google/codegemma", "SmolLM2", "Llama-3.2", "tiiuae/falcon-", "OLMo-1B", "Phi-4-mini")
TIED_QWEN = ("Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-3B", "Coder-0.5B", "Coder-1.5B", "Coder-3B", "Math-1.5B")
TIED_QWEN3 = ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B")


def load_shapes() -> list[dict[str, Any]]:
    """One dict per Hugging Face id, with litgpt's numbers."""
    document = json.loads(DATA.read_text())
    return [dict(zip(document["columns"], row, strict=True)) for row in document["rows"]]


def is_tied(model_id: str) -> bool:
    """Whether the head is the embedding: litgpt does not say, the published configs do."""
    return any(part in model_id for part in (*TIED, *TIED_QWEN, *TIED_QWEN3))


def to_config(shape: dict[str, Any]) -> dict[str, Any]:
    """The shape in the words of a published config; KeyError for families that are not in this list."""
    architecture, model_type, extra = _family(shape)
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": shape["n_embd"],
        "num_hidden_layers": shape["n_layer"],
        "num_attention_heads": shape["n_head"],
        "num_key_value_heads": shape["kv"],
        "head_dim": shape["head"],
        "intermediate_size": shape["ffn"],
        "vocab_size": shape["vocab"],
        "max_position_embeddings": shape["ctx"],
        "tie_word_embeddings": is_tied(shape["id"]),
        "torch_dtype": "bfloat16",
    }
    if shape["head"] * shape["n_head"] == shape["n_embd"]:
        del config["head_dim"]
    return {**config, **extra}


def _family(shape: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    name = shape["id"].split("/")[1].lower()
    if "falcon-" in name:
        grouped = shape["kv"] > 1
        return (
            "FalconForCausalLM",
            "falcon",
            {"num_kv_heads": shape["kv"] if grouped else shape["n_head"], "new_decoder_architecture": grouped},
        )
    if shape["mlp"] == "GptNeoxMLP":
        if "phi" in name:
            return "PhiForCausalLM", "phi", {}
        if "stablelm" in name or "stablecode" in name or "pythia" in name or "dolly" in name or "redpajama" in name:
            return "GPTNeoXForCausalLM", "gpt_neox", {"use_parallel_residual": shape["parallel"]}
        raise KeyError(name)
    if name.startswith(("gemma-3", "gemma-2-", "gemma-", "codegemma")):
        return _gemma(name, shape)
    if name.startswith("qwen3"):
        return _qwen3(shape)
    if name.startswith(("qwen", "qwq")):
        return "Qwen2ForCausalLM", "qwen2", {"use_sliding_window": False}
    if name.startswith("olmo-2"):
        return "Olmo2ForCausalLM", "olmo2", {}
    if name.startswith("olmo"):
        return "OlmoForCausalLM", "olmo", {}
    if name.startswith(("phi-3", "phi-4")):
        return "Phi3ForCausalLM", "phi3", {"pad_token_id": 0, "sliding_window": shape["win"]}
    if name.startswith(("stablelm", "stable-code")):
        return "StableLmForCausalLM", "stablelm", {}
    if shape["n_expert"]:
        more = {"num_local_experts": shape["n_expert"], "num_experts_per_tok": shape["k"]}
        return "MixtralForCausalLM", "mixtral", more
    if name.startswith(("mistral", "mathstral")):
        return "MistralForCausalLM", "mistral", {"sliding_window": shape["win"]}
    return "LlamaForCausalLM", "llama", {}


def _gemma(name: str, shape: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    if name.startswith("gemma-3"):
        return "Gemma3ForCausalLM", "gemma3_text", {"sliding_window": shape["win"]}
    if name.startswith("gemma-2-"):
        return "Gemma2ForCausalLM", "gemma2", {"sliding_window": shape["win"]}
    return "GemmaForCausalLM", "gemma", {}


def _qwen3(shape: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    if not shape["n_expert"]:
        return "Qwen3ForCausalLM", "qwen3", {}
    more = {
        "num_experts": shape["n_expert"],
        "num_experts_per_tok": shape["k"],
        "moe_intermediate_size": shape["moe_ffn"],
    }
    return "Qwen3MoeForCausalLM", "qwen3_moe", more

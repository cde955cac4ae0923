"""Write the models that the engines are compared on, as Hugging Face directories: random N(0, 0.02), seed 0.

    python benchmarks/peers/models.py DIRECTORY                 # in an environment with torch and transformers
    python benchmarks/peers/models.py DIRECTORY --openvino      # then, in one with optimum-intel: exports for OpenVINO

--model, repeatable, writes others than the two dense ones: a mixture of experts, a model with windows, a hybrid.
NAME-float32 holds the values that NAME-bfloat16 has, so that the two differ in arithmetic only. No hub is asked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from workload import VOCAB_SIZES

DTYPES = ("bfloat16", "float32")
DENSE = ("gpt2-124m", "llama-135m")


def _gpt2() -> dict[str, Any]:
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "max_position_embeddings": 1024}


def _llama() -> dict[str, Any]:
    """The shape of SmolLM2-135M."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "rms_norm_eps": 1e-5,
    }


def _llama_1b() -> dict[str, Any]:
    """The shape of Llama-3.2-1B, its positions not scaled, which costs the same and which GGUF files keep simple."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "rms_norm_eps": 1e-5,
    }


def _qwen3_moe() -> dict[str, Any]:
    """Qwen3-MoE's layers, half a billion parameters."""
    return {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "moe_intermediate_size": 384,
        "num_experts": 32,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "rms_norm_eps": 1e-6,
    }


def _gemma3() -> dict[str, Any]:
    """The shape of Gemma-3-270M: five layers with a window of 512 to each that sees all tokens."""
    return {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 512,
        "layer_types": [("full" if (index + 1) % 6 == 0 else "sliding") + "_attention" for index in range(18)],
        "max_position_embeddings": 32768,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "rms_norm_eps": 1e-6,
    }


def _qwen3_5() -> dict[str, Any]:
    """The shape of Qwen3.5-0.8B's text half: three layers of gated delta rules to each with attention."""
    return {
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
    }


CONFIGS = {
    "gpt2-124m": _gpt2,
    "llama-135m": _llama,
    "llama-1b": _llama_1b,
    "qwen3-moe-0.5b": _qwen3_moe,
    "gemma-3-270m": _gemma3,
    "qwen3.5-0.8b": _qwen3_5,
}


def write_models(directory: Path, names: list[str]) -> None:
    """Write each of `names` in both types, with a tokenizer that nobody uses."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    for name in names:
        described = CONFIGS[name]() | {"vocab_size": VOCAB_SIZES[name], "bos_token_id": 0, "eos_token_id": 0}
        config = AutoConfig.for_model(**described, tie_word_embeddings=True)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.02)
        model = model.to(torch.bfloat16)
        for dtype in DTYPES:
            model = model.to(getattr(torch, dtype))
            model.config.dtype = dtype
            model.save_pretrained(directory / f"{name}-{dtype}")
            _write_tokenizer(directory / f"{name}-{dtype}", VOCAB_SIZES[name])


def _write_tokenizer(directory: Path, vocab_size: int) -> None:
    """Engines that want a tokenizer to exist get one word for each token; none is used."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({f"t{index}": index for index in range(vocab_size)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(directory / "tokenizer.json"))
    # By hand, with the class name that every version of transformers knows.
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0", "bos_token": "t0", "eos_token": "t0"}
    (directory / "tokenizer_config.json").write_text(json.dumps(described))


def run_export(source: Path, target: Path, weight_format: str, *options: str) -> None:
    """OpenVINO's export of a Hugging Face directory, by the optimum-cli beside this interpreter."""
    command = [str(Path(sys.executable).with_name("optimum-cli")), "export", "openvino", "-m", str(source)]
    command += ["--weight-format", weight_format, "--task", "text-generation-with-past", *options, str(target)]
    subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


def export_for_openvino(directory: Path, names: list[str]) -> None:
    """bfloat16 weights are stored as float16, which the plugin turns into bfloat16 when it loads them."""
    for name in names:
        for dtype, stored in (("bfloat16", "fp16"), ("float32", "fp32")):
            source = directory / f"{name}-{dtype}"
            run_export(source, directory / f"{source.name}-openvino", stored)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--openvino", action="store_true")
    parser.add_argument("--model", action="append", choices=list(CONFIGS), help="default: " + ", ".join(DENSE))
    arguments = parser.parse_args()
    (export_for_openvino if arguments.openvino else write_models)(arguments.directory, arguments.model or list(DENSE))


if __name__ == "__main__":
    main()

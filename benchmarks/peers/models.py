"""Write the two models that the engines are compared on, as Hugging Face directories: random N(0, 0.02), seed 0.

    python benchmarks/peers/models.py DIRECTORY                 # in an environment with torch and transformers
    python benchmarks/peers/models.py DIRECTORY --openvino      # then, in one with optimum-intel: exports for OpenVINO

NAME-float32 holds the values that NAME-bfloat16 has, so that the two differ in arithmetic only. No hub is asked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

from workload import VOCAB_SIZES

DTYPES = ("bfloat16", "float32")


def write_models(directory: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    gpt2 = GPT2Config(vocab_size=VOCAB_SIZES["gpt2-124m"], bos_token_id=0, eos_token_id=0)
    # The shape of SmolLM2-135M.
    llama = LlamaConfig(
        vocab_size=VOCAB_SIZES["llama-135m"],
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    for name, architecture, config in (("gpt2-124m", GPT2LMHeadModel, gpt2), ("llama-135m", LlamaForCausalLM, llama)):
        torch.manual_seed(0)
        config.architectures = [architecture.__name__]
        model = architecture(config).eval().to(torch.bfloat16)
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


def export_for_openvino(directory: Path) -> None:
    """bfloat16 weights are stored as float16, which the plugin turns into bfloat16 when it loads them."""
    for name in VOCAB_SIZES:
        for dtype, stored in (("bfloat16", "fp16"), ("float32", "fp32")):
            source = directory / f"{name}-{dtype}"
            command = ["optimum-cli", "export", "openvino", "-m", str(source), "--weight-format", stored]
            command += ["--task", "text-generation-with-past", f"{source}-openvino"]
            subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--openvino", action="store_true")
    arguments = parser.parse_args()
    if arguments.openvino:
        export_for_openvino(arguments.directory)
    else:
        write_models(arguments.directory)


if __name__ == "__main__":
    main()

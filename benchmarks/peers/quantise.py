"""Write a Llama of models.py in few bits: GGUF files for kvplan and llama.cpp, and exports for OpenVINO.

    python benchmarks/peers/quantise.py DIRECTORY --model llama-135m               # with llama-cpp-python, torch, gguf
    python benchmarks/peers/quantise.py DIRECTORY --model llama-135m --openvino    # with optimum-intel

The GGUF files are llama.cpp's own quantisations of NAME-bfloat16, without a tokenizer. OpenVINO gets int8 and int4
weights as optimum exports them, int4 in groups of 64 inputs, which every product here divides.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from formats import QUANTISED
from models import run_export

_INT4_OPTIONS = ["--sym", "--group-size", "64", "--ratio", "1.0"]


def write_gguf(source: Path, target: Path) -> None:
    """`source`, a Hugging Face directory of a Llama with tied embeddings, as GGUF in bfloat16."""
    import gguf
    import torch
    from safetensors.torch import load_file

    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(str(target), "llama")
    _add_metadata(writer, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in load_file(source / "model.safetensors").items():
        for part, count in heads.items():
            if part in name:
                tensor = _with_pairs_side_by_side(tensor, count)
        stored = names.get_name(name, try_suffixes=(".weight",))
        if tensor.ndim == 1:
            writer.add_tensor(stored, tensor.float().numpy())
        else:
            values = tensor.contiguous().view(torch.uint8).numpy()
            writer.add_tensor(stored, values, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_metadata(writer: Any, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")


def _with_pairs_side_by_side(weight: Any, num_heads: int) -> Any:
    """Rows of queries or keys as GGUF files have them: those that rotate together lie side by side."""
    halves = weight.unflatten(0, (num_heads, 2, -1))
    return halves.transpose(1, 2).reshape(weight.shape)


def quantise_gguf(source: Path, target: Path, file_type: int) -> None:
    """By llama.cpp itself, with its choice of a type for each tensor."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = file_type
    failed = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), params)
    if failed:
        raise SystemExit(f"llama.cpp could not write {target}")


def write_gguf_files(directory: Path, name: str) -> None:
    """NAME-bfloat16 in each of llama.cpp's formats."""
    wide = directory / f"{name}-bfloat16.gguf"
    write_gguf(directory / f"{name}-bfloat16", wide)
    for stored, quantised in QUANTISED.items():
        quantise_gguf(wide, directory / f"{name}-{stored}.gguf", quantised.gguf_file_type)
    wide.unlink()


def export_for_openvino(directory: Path, name: str) -> None:
    """NAME-bfloat16 as NAME-int8-openvino and NAME-int4-openvino."""
    for stored in sorted({each.openvino for each in QUANTISED.values()}):
        options = _INT4_OPTIONS if stored == "int4" else []
        run_export(directory / f"{name}-bfloat16", directory / f"{name}-{stored}-openvino", stored, *options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--openvino", action="store_true")
    parser.add_argument("--model", action="append", required=True, help="a Llama that models.py wrote")
    arguments = parser.parse_args()
    for name in arguments.model:
        (export_for_openvino if arguments.openvino else write_gguf_files)(arguments.directory, name)


if __name__ == "__main__":
    main()

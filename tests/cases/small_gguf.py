"""A GGUF file of a small Llama."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

HIDDEN, HEADS, KV_HEADS, FFN, VOCAB, LAYERS = 64, 4, 2, 96, 128, 2


def write(path: Path, architecture: str = "llama", *, tied: bool = False) -> Path:
    """A small Llama as llama.cpp would store it: matrices in Q8_0, norms in float32."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_context_length(256)
    writer.add_token_list([f"token {index}" for index in range(VOCAB)])
    writer.add_array("test.numbers", [1, 2, 3])

    def matrix(name: str, out: int, inner: int) -> None:
        packed = gguf.quants.quantize(np.zeros((out, inner), np.float32), gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    matrix("token_embd.weight", VOCAB, HIDDEN)
    if not tied:
        matrix("output.weight", VOCAB, HIDDEN)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(LAYERS):
        for name, out, inner in (
            *(("attn_q", HIDDEN, HIDDEN), ("attn_k", HIDDEN // 2, HIDDEN), ("attn_v", HIDDEN // 2, HIDDEN)),
            *(("attn_output", HIDDEN, HIDDEN), ("ffn_gate", FFN, HIDDEN), ("ffn_up", FFN, HIDDEN)),
            ("ffn_down", HIDDEN, FFN),
        ):
            matrix(f"blk.{layer}.{name}.weight", out, inner)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

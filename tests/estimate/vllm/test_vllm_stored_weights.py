"""A rank's weights under vLLM when the checkpoint is at hand: the formulas' shares of what is really stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from checkpoints import LLAMA, llama_tensors, write_checkpoint
from small_gguf import write as write_gguf

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.settings import ServingSettings

CONFIG = LLAMA | {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1024}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def test_a_gguf_file_counts_as_stored_also_outside_its_layers(tmp_path: Path) -> None:
    """The embedding and the head are 8-bit there, and stay so under vLLM."""
    spec = resolve_model(str(write_gguf(tmp_path / "small.gguf")))
    assert spec.checkpoint is not None
    stored = sum(each.num_bytes for each in spec.checkpoint.language_model)
    table = 256 * (64 // 4) * 2  # cos and sin of 256 positions
    assert weights(spec) == pytest.approx(stored + table, rel=0.01)


def weights(spec: object, tp: int = 1) -> int:
    settings = ServingSettings(tensor_parallel_size=tp)
    return predict_vllm(spec, find_gpu("h100-sxm"), settings).rank.weight_bytes  # type: ignore[arg-type]


@pytest.mark.parametrize("tp", [1, 2])
def test_a_checkpoint_as_its_config_says_changes_nothing(tmp_path: Path, tp: int) -> None:
    spec = resolve_model(str(write_checkpoint(tmp_path, CONFIG, llama_tensors(CONFIG))))
    assert weights(spec, tp) == weights(replace(spec, checkpoint=None), tp)


@pytest.mark.parametrize("tp", [1, 2])
def test_layers_that_were_left_unquantized_count_as_stored(tmp_path: Path, tp: int) -> None:
    """The config says fp8 everywhere, the second layer is stored in bfloat16."""
    tensors = llama_tensors(CONFIG)
    for name, (_, shape) in tuple(tensors.items()):
        if "layers.0" in name and "_proj" in name:
            tensors |= {name: ("F8_E4M3", shape)}
    folder = write_checkpoint(tmp_path, CONFIG | {"quantization_config": FP8}, tensors)
    spec = resolve_model(str(folder))
    matrices = 2 * 512 * 512 + 2 * 256 * 512 + 3 * 96 * 512
    more = weights(spec, tp) - weights(replace(spec, checkpoint=None), tp)
    assert more == pytest.approx(matrices / tp, rel=0.01)

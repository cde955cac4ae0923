"""Formats with floats of 4 bits and bitsandbytes', tensor by tensor: values against other tools', damage refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from float4_packers import mxfp4_parts, pack_llm_int8, pack_mxfp4, pack_nf4, pack_nvfp4

from kvplan_engine import EngineError
from kvplan_engine.checkpoints.quantised.bitsandbytes import BitsAndBytesReader
from kvplan_engine.checkpoints.quantised.compressed import CompressedReader
from kvplan_engine.checkpoints.quantised.floats import ModelOptReader, Mxfp4Reader
from kvplan_engine.checkpoints.quantised.reader import QuantisedReader, StoredTensors, read_checked

NAME = "layer.proj.weight"
WEIGHT = torch.randn(48, 192, generator=torch.Generator().manual_seed(3))
SECTIONS: dict[str, dict[str, Any]] = {
    "mxfp4": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
    "nvfp4": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
    "modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "nf4": {"quant_method": "bitsandbytes"},
    "llm-int8": {"quant_method": "bitsandbytes"},
}
PACKERS = {"mxfp4": pack_mxfp4, "nvfp4": pack_nvfp4, "modelopt": pack_nvfp4, "nf4": pack_nf4, "llm-int8": pack_llm_int8}
READERS = {"compressed-tensors": CompressedReader, "modelopt": ModelOptReader, "bitsandbytes": BitsAndBytesReader}


def stored(tensors: dict[str, torch.Tensor]) -> StoredTensors:
    return StoredTensors(tensors.__getitem__, str, frozenset(tensors))


def reader_of(kind: str, changes: dict[str, torch.Tensor | None] | None = None) -> QuantisedReader:
    """A checkpoint of WEIGHT; changes: leaves that it has otherwise, None for those it lacks."""
    section = SECTIONS[kind]
    packed, _ = PACKERS[kind](WEIGHT, section)
    leaves = {**packed, **(changes or {})}
    tensors = {NAME.removesuffix("weight") + leaf: each for leaf, each in leaves.items() if each is not None}
    return READERS[section["quant_method"]](stored(tensors), section)


@pytest.mark.parametrize("kind", list(PACKERS))
def test_values_are_those_that_were_packed(kind: str) -> None:
    reader = reader_of(kind)
    held = reader.format_of(NAME, WEIGHT.shape[1])
    weight = read_checked(NAME, reader)
    _, meant = PACKERS[kind](WEIGHT, SECTIONS[kind])
    torch.testing.assert_close(weight.dequantised(), meant, rtol=1e-6, atol=0)
    assert held is not None
    assert held.num_bytes(*WEIGHT.shape) == weight.num_bytes
    assert reader.format_of("layer.other.weight", WEIGHT.shape[1]) is None


def test_gpt_oss_experts_are_those_of_transformers() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    pairs, exponents, _ = mxfp4_parts(WEIGHT)
    blocks, scales = pairs.view(3, 16, 6, 16), exponents.view(3, 16, 6)
    weight = read_checked(
        "experts.up", Mxfp4Reader(stored({"experts.up_blocks": blocks, "experts.up_scales": scales}), {})
    )
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # [experts, inputs, outputs]
    torch.testing.assert_close(weight.dequantised(), theirs.transpose(1, 2).flatten(0, 1), rtol=0, atol=0)


@pytest.mark.parametrize("blocks", [(3, 16, 6, 8), (3, 16, 5, 16), (48, 6, 16)])
def test_gpt_oss_experts_of_another_shape_are_refused(blocks: tuple[int, ...]) -> None:
    tensors = {
        "up_blocks": torch.zeros(blocks, dtype=torch.uint8),
        "up_scales": torch.zeros(3, 16, 6, dtype=torch.uint8),
    }
    with pytest.raises(EngineError, match=r"'up' has blocks of .* wanted 16 bytes for each scale"):
        Mxfp4Reader(stored(tensors), {}).read("up")


def _with_no_number(kind: str, leaf: str) -> torch.Tensor:
    scales = PACKERS[kind](WEIGHT, SECTIONS[kind])[0][leaf].clone()
    if scales.dtype is torch.uint8:
        scales.view(-1)[5] = 255
    else:
        scales.view(-1)[5] = float("nan")
    return scales


@pytest.mark.parametrize(
    ("kind", "leaf"),
    [
        ("mxfp4", "weight_scale"),
        ("nvfp4", "weight_scale"),
        ("modelopt", "weight_scale"),
        ("nf4", "weight.nested_quant_map"),
        ("llm-int8", "SCB"),
    ],
)
def test_scales_that_are_no_numbers_are_refused(kind: str, leaf: str) -> None:
    changes: dict[str, torch.Tensor | None] = {leaf: _with_no_number(kind, leaf)}
    if kind == "nf4":
        changes["weight.absmax"] = torch.full((144,), 5, dtype=torch.uint8)
    with pytest.raises(EngineError, match=r"'layer.proj.weight' has scales that are no numbers"):
        read_checked(NAME, reader_of(kind, changes))


@pytest.mark.parametrize(
    ("kind", "leaf", "tensor", "message"),
    [
        ("mxfp4", "weight_scale", torch.zeros(48, 12, dtype=torch.uint8), "groups of 32, wanted"),
        ("mxfp4", "weight_packed", torch.zeros(48, 90, dtype=torch.uint8), "groups of 32, wanted"),
        ("nvfp4", "weight_scale", torch.ones(48, 12), "has scales of torch.float32"),
        ("nvfp4", "weight_scale", torch.ones(48, 6).to(torch.float8_e4m3fn), "groups of 16, wanted"),
        ("nvfp4", "weight_global_scale", torch.ones(2), "and 2 for the whole tensor"),
        ("nvfp4", "weight_global_scale", torch.zeros(1), "no numbers"),
        ("modelopt", "weight_scale", None, "no tensor 'layer.proj.weight_scale'"),
        ("modelopt", "weight", torch.zeros(48, 96), "holds torch.float32"),
        ("nf4", "weight", torch.zeros(100, 1, dtype=torch.uint8), "has 100 bytes and 144 scales of 64"),
        ("nf4", "weight.absmax", torch.zeros(143, dtype=torch.uint8), "and 143 scales of 64"),
        ("nf4", "weight.absmax", torch.zeros(300, dtype=torch.uint8), "has 1 scales for 300 quantised ones"),
        ("nf4", "weight.quant_map", torch.zeros(256), "256 values for codes of 4 bits"),
        ("nf4", "weight.quant_state.bitsandbytes__nf4", torch.zeros(9, dtype=torch.uint8), "damaged"),
        ("llm-int8", "SCB", torch.ones(47), "has 47 scales for 48 outputs"),
    ],
)
def test_damage_is_said_in_a_sentence(kind: str, leaf: str, tensor: torch.Tensor | None, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        read_checked(NAME, reader_of(kind, {leaf: tensor}))


def test_an_algorithm_that_is_not_read_is_named() -> None:
    with pytest.raises(EngineError, match="ModelOpt's weights in 'W4A8_AWQ' are not loaded"):
        ModelOptReader(stored({}), {"quant_algo": "W4A8_AWQ"})


def test_blocks_of_a_flattened_weight_may_straddle_rows() -> None:
    """Of 40 inputs and blocks of 64, eight inputs at a time share a scale."""
    weight = torch.randn(16, 40, generator=torch.Generator().manual_seed(4))
    packed, meant = pack_nf4(weight, {})
    tensors = {f"layer.proj.{leaf}": tensor for leaf, tensor in packed.items()}
    reader = BitsAndBytesReader(stored(tensors), {})
    held = reader.format_of(NAME, 40)
    assert held is not None
    assert held.group_size == 8
    torch.testing.assert_close(reader.read(NAME).dequantised(), meant, rtol=1e-6, atol=0)

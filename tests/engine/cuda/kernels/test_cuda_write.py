"""The write kernel's own source, run on the CPU, against torch: slots, rotation, storage types."""

from __future__ import annotations

import pytest
import torch

from kvplan_engine.attention.backend import KvSlots, Rotation
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.attention.layer_cache import uniform_cache
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.kernels import torch_ops
from kvplan_engine.kernels.cuda.launching.emulation import EmulatedRuntime

F32, F16, BF16, FP8 = torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn
NUM_BLOCKS, NUM_LAYERS, NUM_TOKENS, MAX_POSITION = 6, 3, 9, 40


def fused_rows(query_heads: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> torch.Tensor:
    """Queries, keys and values as a fused projection leaves them, side by side in the same rows."""
    heads = torch.randn(NUM_TOKENS, query_heads + 2 * kv_heads, head_size, generator=torch.Generator().manual_seed(1))
    return heads.to(dtype)


def some_slots(block_size: int) -> torch.Tensor:
    slots = torch.randperm(NUM_BLOCKS * block_size, generator=torch.Generator().manual_seed(2))[:NUM_TOKENS]
    slots[3] = -1
    return slots


def same_stored(one: torch.Tensor, other: torch.Tensor, steps: int) -> bool:
    """Equal up to ``steps`` neighbouring values of the storage type."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32}[one.element_size()]
    return bool(((one.view(integers).long() - other.view(integers).long()).abs() <= steps).all())


@pytest.mark.parametrize("scalar", [F32, F16, BF16])
@pytest.mark.parametrize(("cache", "head_size", "block_size"), [(None, 64, 16), (FP8, 80, 5)])
def test_rows_land_in_their_slots_and_nowhere_else(scalar, cache, head_size, block_size) -> None:
    _, key, value = fused_rows(4, 2, head_size, scalar).split([4, 2, 2], dim=1)
    pool = torch.full((NUM_BLOCKS, NUM_LAYERS, 2, 2, block_size, head_size), 5.0).to(cache or scalar)
    expected = pool.clone()
    slots = some_slots(block_size)
    ReferenceBackend().write_kv(key, value, uniform_cache(expected, 1), KvSlots(slots))
    CudaBackend(EmulatedRuntime()).write_kv(key, value, uniform_cache(pool, 1), KvSlots(slots))
    assert same_stored(pool, expected, 0)


@pytest.mark.parametrize(
    ("scalar", "cache", "head_size", "rotary"),
    [
        *((F32, F32, 64, 64), (BF16, BF16, 128, 128), (F16, F16, 80, 32), (BF16, FP8, 96, 96), (BF16, BF16, 256, 64)),
        *((BF16, BF16, 96, 24), (F32, F32, 96, 24), (BF16, FP8, 80, 20)),  # GPT-NeoX-20B, Pythia-2.8B
    ],
)
def test_rotation_is_fused(scalar, cache, head_size, rotary) -> None:
    heads, value = fused_rows(4, 2, head_size, scalar).split([6, 2], dim=1)
    query, key = heads.split([4, 2], dim=1)
    pool = torch.zeros(NUM_BLOCKS, NUM_LAYERS, 2, 2, 16, head_size).to(cache)
    expected = pool.clone()
    slots = some_slots(16)
    positions = torch.randint(MAX_POSITION, (NUM_TOKENS,), generator=torch.Generator().manual_seed(3))
    angles = torch.rand(MAX_POSITION, rotary // 2, generator=torch.Generator().manual_seed(4)) * 6
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    rotated_query = query.clone()
    torch_ops.rope_inplace(rotated_query, positions, cos_sin)
    wide_key = key.float().clone()
    torch_ops.rope_inplace(wide_key, positions, cos_sin)
    ReferenceBackend().write_kv(wide_key, value.float(), uniform_cache(expected, 2), KvSlots(slots))
    key_before = key.clone()
    rotation = Rotation(heads, positions, cos_sin)
    CudaBackend(EmulatedRuntime()).rotate_and_write(rotation, value, uniform_cache(pool, 2), KvSlots(slots))
    assert torch.allclose(query.float(), rotated_query.float(), atol=2e-2 if scalar is not F32 else 1e-6)
    assert torch.equal(key, key_before)
    if cache is F32:
        assert torch.allclose(pool, expected, atol=1e-6)
    else:
        assert same_stored(pool, expected, 1)


def test_every_fp8_value_is_written_as_torch_writes_it() -> None:
    """All finite bfloat16 values, so every rounding, subnormal and saturation of e4m3."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    values = bits.view(BF16)
    values = values[values.isfinite()]
    count = values.numel() // 64 * 64
    key = values[:count].view(-1, 1, 64)
    tokens = key.shape[0]
    pool = torch.zeros(tokens, 1, 2, 1, 1, 64).to(FP8)
    CudaBackend(EmulatedRuntime()).write_kv(key, key, uniform_cache(pool, 0), KvSlots(torch.arange(tokens)))
    expected = key.float().clamp(-448, 448).to(FP8)
    assert torch.equal(pool[:, 0, 0, :, 0].float(), expected.float())


def test_arguments_that_do_not_fit_are_refused() -> None:
    backend = CudaBackend(EmulatedRuntime())
    pool = torch.zeros(2, 1, 2, 1, 16, 64)
    key = torch.zeros(3, 1, 64)
    slots = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"key is .* wanted torch\.float32 \(3, 1, 64\)"):
        backend.write_kv(
            key.view(3, 1, 64).repeat(1, 2, 1), key.repeat(1, 2, 1), uniform_cache(pool, 0), KvSlots(slots)
        )
    with pytest.raises(ValueError, match="slots is"):
        backend.write_kv(key, key, uniform_cache(pool, 0), KvSlots(slots.int()))
    with pytest.raises(IndexError, match="layer 1 of a pool of 1"):
        backend.write_kv(key, key, uniform_cache(pool, 1), KvSlots(slots))
    with pytest.raises(ValueError, match="multiples of 16 bytes"):
        backend.write_kv(
            torch.zeros(3 * 65)[1:].as_strided((3, 1, 64), (65, 64, 1)), key, uniform_cache(pool, 0), KvSlots(slots)
        )

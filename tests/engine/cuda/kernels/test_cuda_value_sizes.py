"""Values of another size than keys, and values that are the beginnings of the keys (latent attention), on CUDA."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from kernel_matrix import properties_of

from kvplan_engine.attention import cuda_plan
from kvplan_engine.attention.backend import AttentionInputs, AttentionMetadata, AttentionOptions, KvSlots
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.attention.layer_cache import LayerCache, latent_cache
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.kernels.cuda.attention import AttentionShape, decode_launch, prefill_launch
from kvplan_engine.kernels.cuda.launching.emulation import BACKWARD, EMULATED_PROPERTIES, EmulatedRuntime
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError
from kvplan_engine.kernels.cuda.ops import CudaOps
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.kernels.torch_ops import rope_inplace

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LENGTHS = ((1, 530), (1, 17), (5, 40), (20, 20), (1, 1))
"""New tokens and tokens in all of each sequence."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Heads, and sizes of key and value; ``is_latent``: the value is the beginning of the key."""

    num_heads: int
    num_kv_heads: int
    key: int
    value: int
    is_latent: bool = False


def filled_cache(sizes: Sizes, block_size: int, dtype: torch.dtype) -> tuple[LayerCache, torch.Tensor]:
    """A pool that is NaN where no token lies, and tables with numbers out of range behind the last block."""
    generator = torch.Generator().manual_seed(1)
    counts = [-(-length // block_size) for _, length in LENGTHS]
    order = torch.randperm(sum(counts), generator=generator).to(torch.int32).split(counts)
    tables = torch.full((len(LENGTHS), max(counts) + 1), 2**30, dtype=torch.int32)
    columns = sizes.num_kv_heads * block_size * sizes.key
    width = columns + (0 if sizes.is_latent else columns // sizes.key * sizes.value)
    pool = torch.full((sum(counts), width + 16), float("nan"))
    keys = pool[:, :columns].view(-1, sizes.num_kv_heads, block_size, sizes.key)
    values = pool[:, columns:width].view(len(pool), sizes.num_kv_heads, block_size, -1)
    for table, blocks, (_, length) in zip(tables, order, LENGTHS, strict=True):
        table[: len(blocks)] = blocks
        for pages in (keys,) if sizes.is_latent else (keys, values):
            shape = (length, sizes.num_kv_heads, pages.shape[-1])
            position = torch.arange(length)
            pages[blocks.long()[position // block_size], :, position % block_size] = torch.randn(
                shape, generator=generator
            )
    pool = pool.to(dtype)
    keys = pool[:, :columns].unflatten(1, (sizes.num_kv_heads, block_size, sizes.key))
    if sizes.is_latent:
        return latent_cache(keys, sizes.value, 0), tables
    return LayerCache(keys, pool[:, columns:width].unflatten(1, (sizes.num_kv_heads, block_size, -1)), 0), tables


def check(
    sizes: Sizes, block_size: int, dtype: torch.dtype, runtime: EmulatedRuntime, parts: StepMemory | None = None
) -> None:
    cache, tables = filled_cache(sizes, block_size, dtype)
    new = torch.tensor([0, *(queries for queries, _ in LENGTHS)])
    num_tokens, starts = int(new.sum()), new.cumsum(0).to(torch.int32)
    lengths = torch.tensor([length for _, length in LENGTHS], dtype=torch.int32)
    slots = KvSlots(torch.full((num_tokens,), -1))
    metadata = AttentionMetadata(slots, tables, lengths, starts, 20)
    query = torch.randn(num_tokens, sizes.num_heads, sizes.key, generator=torch.Generator().manual_seed(2)).to(dtype)
    options = AttentionOptions(sizes.key**-0.5)
    out = torch.full((num_tokens, sizes.num_heads, sizes.value), float("nan"), dtype=dtype)
    want = torch.zeros(out.shape, dtype=torch.float64)
    ReferenceBackend(torch.float64).attend(AttentionInputs(query, cache, metadata, want, options))
    CudaBackend(runtime, parts=parts).attend(AttentionInputs(query, cache, metadata, out, options))
    bound = {F32: 4e-6, F16: 4e-3, BF16: 3e-2}[dtype]
    assert float((out.double() - want).abs().max()) < bound


LATENT = Sizes(20, 1, 48, 32, is_latent=True)
MANY = Sizes(70, 1, 48, 32, is_latent=True)
EVEN = Sizes(20, 1, 64, 32, is_latent=True)  # a warp copies whole tokens of a page
APART = Sizes(4, 2, 32, 48)


@pytest.mark.parametrize(
    ("sizes", "block_size", "dtype"),
    [(LATENT, 3, F32), (LATENT, 16, BF16), (EVEN, 16, BF16), (MANY, 3, F16), (APART, 16, F32), (APART, 5, F16)],
    ids=["latent", "latent bfloat16", "even rows", "more heads than a block has", "apart", "apart float16"],
)
def test_attention_is_as_defined(sizes: Sizes, block_size: int, dtype: torch.dtype) -> None:
    check(sizes, block_size, dtype, EmulatedRuntime(order=BACKWARD))


@pytest.mark.parametrize(
    ("sizes", "block_size", "dtype"), [(EVEN, 16, BF16), (APART, 16, F32)], ids=["latent", "apart"]
)
def test_parts_of_tiles(monkeypatch: pytest.MonkeyPatch, sizes: Sizes, block_size: int, dtype: torch.dtype) -> None:
    """Tokens behind a prefix are cut into parts of 64 and more on a device that has room for them."""
    monkeypatch.setattr(cuda_plan, "MIN_PART", 64)
    monkeypatch.setattr(f"{__name__}.LENGTHS", ((6, 330), (1, 40)))
    memory = StepMemory(torch.zeros(2**19, dtype=torch.uint8))
    runtime = EmulatedRuntime(replace(EMULATED_PROPERTIES, num_multiprocessors=8), BACKWARD)
    check(sizes, block_size, dtype, runtime, memory)
    assert memory.vector(torch.uint8).any(), "nothing was cut"


@pytest.mark.slow
def test_rows_of_deepseek() -> None:
    check(Sizes(3, 1, 576, 512, is_latent=True), 16, F32, EmulatedRuntime())
    check(Sizes(16, 1, 576, 512, is_latent=True), 16, BF16, EmulatedRuntime())


@pytest.mark.parametrize("sizes", [Sizes(1, 1, 48, 32, is_latent=True), Sizes(2, 2, 16, 24)], ids=["latent", "apart"])
def test_keys_and_values_are_written(sizes: Sizes) -> None:
    heads, tokens = sizes.num_kv_heads, 4
    key, value = torch.randn(tokens, heads, sizes.key), torch.randn(tokens, heads, sizes.value)
    pool = torch.zeros(3, heads * 4 * (sizes.key + sizes.value))
    keys, values = (part.unflatten(1, (heads, 4, -1)) for part in pool.tensor_split([heads * 4 * sizes.key], dim=1))
    cache = latent_cache(keys, sizes.value, 0) if sizes.is_latent else LayerCache(keys, values, 0)
    slots = torch.tensor([5, -1, 11, 0])
    CudaBackend(EmulatedRuntime()).write_kv(key, None if sizes.is_latent else value, cache, KvSlots(slots))
    for token in (0, 2, 3):
        block, offset = divmod(int(slots[token]), 4)
        assert torch.equal(cache.keys[block, :, offset], key[token])
        wanted = key[token, :, : sizes.value] if sizes.is_latent else value[token]
        assert torch.equal(cache.values[block, :, offset], wanted)
    written = sizes.key if sizes.is_latent else sizes.key + sizes.value
    assert int(pool.count_nonzero()) == 3 * heads * written


def test_the_last_part_of_each_head_turns() -> None:
    heads = torch.randn(5, 3, 48)
    positions, angles = torch.tensor([3, 0, 7, 7, 1]), torch.rand(8, 8) * 6
    table, want = torch.cat([angles.cos(), angles.sin()], 1), heads.clone()
    rope_inplace(want[..., 32:], positions, table)
    CudaOps(EmulatedRuntime()).rope_inplace(heads[..., 32:], positions, table)
    assert torch.allclose(heads, want, atol=1e-6)


def test_what_has_no_room_is_refused() -> None:
    shape = AttentionShape(F16, F16, 576, 16, 16, 1, other_value_size=512, values_in_keys=True)
    assert prefill_launch(shape, properties_of((8, 0))).variant.source == "attention/latent_mma.cu"
    assert decode_launch(shape, properties_of((8, 6))).variant.source == "attention/decode/decode_simple.cu"
    assert prefill_launch(shape, properties_of((8, 6))).tile_rows == 4 * 2
    with pytest.raises(CudaKernelError, match="heads of 576 elements do not fit"):
        prefill_launch(shape, properties_of((7, 5)))

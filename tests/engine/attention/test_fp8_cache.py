"""A KV pool of one byte per value (e4m3): written as torch rounds, read exactly, attended to as defined."""

from __future__ import annotations

import pytest
import torch
from kernel_builds import BUILDS
from paged_cases import LAYER, Shape, assert_matches_definition, attend, make_case

from kvplan_engine.attention.backend import AttentionBackend, KvSlots
from kvplan_engine.attention.cpu import CpuBackend
from kvplan_engine.attention.layer_cache import uniform_cache
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.kernels.build import NATIVE, build_library
from kvplan_engine.kernels.cpu.library import CpuKernels, load_kernels

pytestmark = pytest.mark.usefixtures("one_thread")

FP8 = torch.float8_e4m3fn


@pytest.fixture(scope="module", params=["reference", *BUILDS], ids=lambda p: getattr(p, "name", p))
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    if request.param == "reference":
        return ReferenceBackend()
    kernels = load_kernels() if request.param is NATIVE else CpuKernels(build_library(request.param))
    return CpuBackend(kernels)


def saturated(values: torch.Tensor) -> torch.Tensor:
    """What is stored for ``values``: torch's rounding, but 448 for what is larger."""
    return values.float().clamp(-448.0, 448.0).to(FP8)


def awkward_values(head_size: int) -> torch.Tensor:
    """Every bfloat16, so every tie and every limit; small numbers; numbers beyond the largest. [T, 1, head_size]."""
    generator = torch.Generator().manual_seed(1)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    ties = torch.arange(-300, 300).float() / 1024  # halves of the steps below 2^-6
    spread = [torch.randn(4000, generator=generator) * scale for scale in (1e-3, 0.02, 1.0, 200.0, 1e4)]
    values = torch.cat([every, ties, *spread])
    return values[: values.numel() // head_size * head_size].view(-1, 1, head_size)


@pytest.mark.parametrize("head_size", [64, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_are_rounded_as_torch_rounds_and_saturate(
    backend: AttentionBackend, dtype: torch.dtype, head_size: int
) -> None:
    values = awkward_values(head_size).to(dtype)
    num_tokens = values.shape[0]
    kv = torch.zeros(-(-num_tokens // 16), 1, 2, 1, 16, head_size, dtype=FP8)
    backend.write_kv(values, -values, uniform_cache(kv, 0), KvSlots(torch.arange(num_tokens)))
    for index, expected in ((0, saturated(values)), (1, saturated(-values))):
        stored = kv[:, 0, index].view(torch.uint8).flatten(0, 2)[:num_tokens]
        wanted = expected.view(torch.uint8)[:, 0]
        is_number = ~expected.float().isnan()[:, 0]
        assert torch.equal(stored[is_number], wanted[is_number])
        assert bool(((stored & 0x7F) == 0x7F).eq(~is_number).all()), "a NaN was lost, or made"


def test_every_byte_is_read_as_torch_reads_it(backend: AttentionBackend) -> None:
    """A sequence of one token attends to nothing else: its output is its value."""
    shape = Shape(num_heads=2, num_kv_heads=2, head_size=256, block_size=4)
    case = make_case(shape, [(1, 1)], kv_dtype=FP8)
    block = int(case.metadata.block_tables[0, 0])
    every_byte = torch.arange(256, dtype=torch.uint8).view(FP8)
    case.kv[block, LAYER, 1, :, 0] = every_byte.expand(2, 256)
    result = attend(backend, case)[0]
    assert torch.equal(result.nan_to_num(nan=1e9), every_byte.float().nan_to_num(nan=1e9).expand(2, 256))


# The reference is the definition: only the compiled kernels are held against it.
@pytest.mark.parametrize("backend", BUILDS, ids=lambda p: getattr(p, "name", p), indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (6, 2), (7, 1), (16, 2)])
@pytest.mark.parametrize("head_size", [13, 64, 80, 128])
@pytest.mark.parametrize("block_size", [1, 16])
def test_matches_definition(
    backend: AttentionBackend, block_size: int, head_size: int, num_heads: int, num_kv_heads: int, dtype: torch.dtype
) -> None:
    lengths = [(1, 1), (1, 17), (1, 150), (19, 61), (0, 7), (40, 70), (3, 70)]
    shape = Shape(num_heads, num_kv_heads, head_size, block_size)
    assert_matches_definition(backend, make_case(shape, lengths, dtype, FP8))

"""Sparse attention: which tokens are chosen, and attention to these alone, as the definition in plain torch has it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_builds import OTHER_BUILDS
from paged_cases import PADDING_ROWS, Shape, make_case

from kvplan_engine.attention.backend import AttentionInputs, AttentionMetadata, AttentionOptions, ChoiceInputs
from kvplan_engine.attention.cpu import CpuBackend
from kvplan_engine.attention.layer_cache import LayerCache, latent_cache
from kvplan_engine.attention.reference import ReferenceBackend
from kvplan_engine.kernels.build import NATIVE, BuildVariant, build_library
from kvplan_engine.kernels.cpu.library import CpuKernels, load_kernels

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTHS = [(1, 200), (1, 17), (5, 40), (30, 30), (1, 1), (9, 100)]
"""New tokens and all tokens: fewer and more than are chosen, and prompts that cross over."""
TOP_K = 21
PAIRS = [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float8_e4m3fn)]


def paged(heads: int, size: int, block_size: int, kv_dtype: torch.dtype) -> tuple[LayerCache, AttentionMetadata]:
    """Ragged sequences over a pool of one head that is NaN where no token lies."""
    case = make_case(Shape(heads, 1, size, block_size), LENGTHS, torch.float32, kv_dtype)
    rows = case.kv[:, 1, 0].clone()
    return latent_cache(rows, size - 5, 0), case.metadata


def rows_of(metadata: AttentionMetadata, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(int(metadata.query_starts[-1]) + PADDING_ROWS, *shape, generator=generator).to(dtype)


def choice_of(block_size: int, dtype: torch.dtype, kv_dtype: torch.dtype, size: int = 24) -> ChoiceInputs:
    cache, metadata = paged(7, size, block_size, kv_dtype)
    query, weights = (rows_of(metadata, *shape, dtype=dtype) for shape in ((7, size), (7,)))
    chosen = torch.full((query.shape[0], TOP_K), -7, dtype=torch.int32)
    return ChoiceInputs(query, weights, replace(cache, values=cache.keys), metadata, chosen)


def seen_counts(metadata: AttentionMetadata) -> list[int]:
    """Of each query token: how many tokens it chooses."""
    return [min(TOP_K, total - new + i + 1) for new, total in LENGTHS for i in range(new)]


def check_choice(kernels: CpuKernels, inputs: ChoiceInputs) -> None:
    wanted = replace(inputs, chosen=inputs.chosen.clone())
    ReferenceBackend(torch.float64).choose(wanted)
    CpuBackend(kernels).choose(inputs)
    for row, count in enumerate(seen_counts(inputs.metadata)):
        assert inputs.chosen[row, :count].tolist() == wanted.chosen[row, :count].tolist()
    assert bool((inputs.chosen[-PADDING_ROWS:] == -7).all()), "wrote into padding rows"


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize(("dtype", "kv_dtype"), PAIRS)
def test_the_choice_is_as_defined(block_size: int, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    check_choice(load_kernels(), choice_of(block_size, dtype, kv_dtype))


def test_of_equal_scores_the_earlier_are_chosen() -> None:
    inputs = choice_of(16, torch.float32, torch.float32)
    inputs.weights.zero_()
    CpuBackend(load_kernels()).choose(inputs)
    assert inputs.chosen[0].tolist() == list(range(TOP_K))


@pytest.mark.parametrize("num_heads", [1, 4, 13])
@pytest.mark.parametrize(("dtype", "kv_dtype"), PAIRS)
def test_attention_to_the_chosen_is_as_defined(num_heads: int, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    check_attention(load_kernels(), num_heads, dtype, kv_dtype)


def check_attention(kernels: CpuKernels, num_heads: int, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    choice = choice_of(8, torch.float32, torch.float32)
    ReferenceBackend().choose(choice)
    cache, metadata = paged(num_heads, 37, 8, kv_dtype)
    query = rows_of(metadata, num_heads, 37, dtype=dtype)
    outs = []
    for backend, kind in (
        (ReferenceBackend(torch.float64), torch.float64),
        (ReferenceBackend(), torch.float32),
        (CpuBackend(kernels), dtype),
    ):
        out = torch.zeros(query.shape[0], num_heads, 32, dtype=kind)
        backend.attend(AttentionInputs(query, cache, metadata, out, AttentionOptions(0.2), choice.chosen))
        outs.append(out[:-PADDING_ROWS].double())
    exact, in_float32, result = outs
    allowed = 5.0 * float((in_float32 - exact).abs().max()) + 2e-7
    rounding = exact.abs() * 2.0**-8 if dtype is torch.bfloat16 else 0.0
    assert bool(((result - exact).abs() <= allowed + rounding).all())


@pytest.mark.parametrize("variant", OTHER_BUILDS, ids=lambda variant: variant.name)
def test_every_build_is_as_defined(variant: BuildVariant) -> None:
    kernels = CpuKernels(build_library(variant))
    for dtype, kv_dtype in PAIRS:
        check_choice(kernels, choice_of(3, dtype, kv_dtype, size=21))
        check_attention(kernels, 13, dtype, kv_dtype)


def test_what_does_not_fit_is_refused() -> None:
    backend = CpuBackend(load_kernels(NATIVE))
    choice = choice_of(8, torch.float32, torch.float32)
    with pytest.raises(ValueError, match="chosen is"):
        backend.choose(replace(choice, chosen=choice.chosen.long()))
    cache, metadata = paged(4, 37, 8, torch.float32)
    query = rows_of(metadata, 4, 37, dtype=torch.float32)
    inputs = AttentionInputs(query, cache, metadata, query[..., :32].clone(), AttentionOptions(0.2), choice.chosen)
    with pytest.raises(IndexError, match="do not fit"):  # nothing has been chosen yet
        backend.attend(inputs)
    with pytest.raises(ValueError, match="chosen tokens are for one KV head"):
        backend.attend(replace(inputs, options=AttentionOptions(0.2, window=3)))

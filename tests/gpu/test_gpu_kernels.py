"""The kernels on a real device: the same cases as the emulated tests, larger ones, and capture in a graph."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cuda_cases import AttentionCase, attend, build_batch, largest_error, options_of, tolerance
from precompile import precompile
from test_cuda_decode import OLD_GPU_CASES, PLAIN_CASES, TENSOR_CORE_CASES
from test_cuda_prefill import CASES as PREFILL_CASES
from test_cuda_shared import CASES as SHARED_CASES
from test_cuda_shared import Groups, share
from test_cuda_wgmma import FLOAT8S, LLAMAS, SMALL, VARIANTS

from kvplan_engine.attention import cuda_plan
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.attention.layer_cache import uniform_cache
from kvplan_engine.kernels import torch_ops
from kvplan_engine.kernels.cuda.attention import AttentionShape, decode_launch, prefill_launch
from kvplan_engine.kernels.cuda.launching.driver import current_runtime, torch_cuda_major
from kvplan_engine.kernels.cuda.launching.runtime import DeviceProperties
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant
from kvplan_engine.kernels.cuda.ops import CudaOps

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
DEVICE = "cuda"
# A device's exp2 is good to 2^-22, a host's to the last bit.
LEAST_TOLERANCE = 1e-5
LONG_CASES = [
    AttentionCase(128, 16, 32, 8, (30000,), (1,), scalar=BF16),
    AttentionCase(128, 16, 32, 8, tuple(range(1, 2000, 31)), (1,) * 65, scalar=BF16),
    AttentionCase(64, 16, 12, 12, tuple(range(1, 2000, 31)), (1,) * 65, scalar=F16),
    AttentionCase(128, 16, 32, 8, (1500, 4000, 700), (1500, 300, 1), scalar=BF16),
    AttentionCase(64, 16, 12, 12, (1500, 2000), (1500, 129), scalar=F16, window=700),
]


ALL_CASES = TENSOR_CORE_CASES + PLAIN_CASES + OLD_GPU_CASES + PREFILL_CASES + LONG_CASES


def kernels_of(case: AttentionCase, properties: DeviceProperties) -> list[KernelVariant]:
    """What a case's attention launches."""
    shape = AttentionShape(
        case.scalar,
        case.cache or case.scalar,
        case.head_size,
        case.block_size,
        case.num_query_heads,
        case.num_kv_heads,
        case.softcap is not None,
        case.sinks,
    )
    decode, prefill = decode_launch(shape, properties).variant, prefill_launch(shape, properties).variant
    return [decode, prefill] if max(case.query_lens) > 1 else [decode]


@pytest.fixture(scope="module")
def backend() -> CudaBackend:
    runtime = current_runtime()
    kernels = [kernel for case in ALL_CASES for kernel in kernels_of(case, runtime.properties)]
    precompile(kernels, runtime.architecture, torch_cuda_major())
    return CudaBackend(runtime)


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_attention_matches_the_reference(backend: CudaBackend, case: AttentionCase) -> None:
    batch = build_batch(case, DEVICE)
    attend(backend, case, batch)
    torch.cuda.synchronize()
    assert largest_error(case, batch) < max(tolerance(case), LEAST_TOLERANCE)


def test_a_captured_decode_step_follows_new_lengths(backend: CudaBackend) -> None:
    case = AttentionCase(128, 16, 8, 2, (900, 40, 300), (1, 1, 1), scalar=BF16)
    batch = build_batch(case, DEVICE)
    backend.reserve_decode(uniform_cache(batch.kv, 0), BF16, 8, 3, options_of(case, batch))
    attend(backend, case, batch)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend(backend, case, batch)
    for lengths in ((900, 40, 300), (5, 40, 17), (0, 1, 256)):
        shorter = replace(case, seq_lens=lengths)
        batch.metadata.seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        assert largest_error(shorter, batch) < tolerance(case)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_operations_match_torch(dtype: torch.dtype) -> None:
    ops, rounding = CudaOps(current_runtime()), {F32: 1e-5, F16: 4e-3, BF16: 3e-2}[dtype]
    x, delta = (torch.randn(37, 4096, device=DEVICE).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(4096, device=DEVICE).to(dtype) for _ in range(2))
    for name, parameters in (("add_rms_norm", (weight,)), ("add_layer_norm", (weight, bias))):
        results = []
        for source in (ops, torch_ops):
            residual, out = x.clone(), torch.empty_like(x)
            getattr(source, name)(delta, residual, *parameters, 1e-5, out)
            results.append((residual, out))
        assert torch.equal(results[0][0], results[1][0])
        assert torch.allclose(results[0][1].float(), results[1][1].float(), atol=rounding, rtol=rounding)
    for name in ("gelu_inplace", "gelu_new_inplace"):
        ours, theirs = x.clone(), x.clone()
        getattr(ops, name)(ours)
        getattr(torch_ops, name)(theirs)
        assert torch.allclose(ours.float(), theirs.float(), atol=rounding, rtol=rounding)
    ours, theirs = torch.empty(37, 2048, device=DEVICE, dtype=dtype), torch.empty(37, 2048, device=DEVICE, dtype=dtype)
    ops.silu_and_mul(x, ours)
    torch_ops.silu_and_mul(x, theirs)
    assert torch.allclose(ours.float(), theirs.float(), atol=rounding, rtol=rounding)
    best, expected = (torch.empty(37, dtype=torch.int64, device=DEVICE) for _ in range(2))
    ops.argmax_rows(x, best)
    torch_ops.argmax_rows(x, expected)
    assert torch.equal(x.gather(1, best[:, None]), x.gather(1, expected[:, None]))


def test_blocks_are_copied_to_and_from_pinned_host_memory() -> None:
    ops = CudaOps(current_runtime())
    pool = torch.randn(9, 2, 2, 4, 16, 64, device=DEVICE).to(BF16)
    host = torch.zeros(5, 2, 2, 4, 16, 64, dtype=BF16).pin_memory()
    out_pairs, in_pairs = torch.tensor([[3, 0], [8, 4]]), torch.tensor([[0, 5], [4, 1]])
    ops.copy_blocks(pool, host, out_pairs.to(DEVICE))
    ops.copy_blocks(host, pool, in_pairs.to(DEVICE))
    torch.cuda.synchronize()
    assert torch.equal(host[[0, 4]], pool[[3, 8]].cpu())
    assert torch.equal(pool[[5, 1]], pool[[3, 8]])


@pytest.mark.parametrize(("case", "groups"), SHARED_CASES, ids=str)
def test_shared_prefixes_match_the_reference(
    case: AttentionCase, groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_plan, "MIN_SHARED", 64)
    runtime = current_runtime()
    if not runtime.properties.has_tensor_kernels:
        pytest.skip("tensor cores of compute capability 8.0 and newer")
    batch = share(build_batch(case, DEVICE), case, groups)
    attend(CudaBackend(runtime, shares=True), case, batch)
    torch.cuda.synchronize()
    assert largest_error(case, batch) < max(tolerance(case), LEAST_TOLERANCE)


# Last: no GPU has run this kernel yet, and if it hung it would take the tests behind it.
@pytest.mark.parametrize("case", [LLAMAS, SMALL, FLOAT8S, *VARIANTS, *LONG_CASES[-2:]], ids=str)
def test_prompts_by_warp_groups_match_the_reference(case: AttentionCase) -> None:
    runtime = current_runtime()
    if runtime.properties.capability != (9, 0):
        pytest.skip("compute capability 9.0 alone has these products")
    batch = build_batch(case, DEVICE)
    attend(CudaBackend(runtime, wgmma=True), case, batch)
    torch.cuda.synchronize()
    assert largest_error(case, batch) < max(tolerance(case), LEAST_TOLERANCE)

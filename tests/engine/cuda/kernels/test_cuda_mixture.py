"""The mixture kernels' own source, run on the CPU, against the definition in plain torch."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch

from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.kernels import torch_mixture
from kvplan_engine.kernels.cuda import mixtures as mixture_launch
from kvplan_engine.kernels.cuda.launching.emulation import BACKWARD, EMULATED_PROPERTIES, EmulatedRuntime
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.mixtures import CudaMixture, MixtureMemory, computes_mixture
from kvplan_engine.kernels.mixture_weights import ExpertWeights, MixtureRoom, MixtureWeights

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
BOUND = {F32: 2e-5, F16: 4e-3, BF16: 3e-2}
HIDDEN = 72
SIMPLE = replace(EMULATED_PROPERTIES, capability=(7, 5))

PLAIN = Mixture(6, 2, Mlp(40, "silu"))
SHARED = Mixture(
    *(8, 3, Mlp(24, "silu")),
    scoring="sigmoid",
    correction=True,
    num_groups=4,
    top_groups=2,
    scale=2.5,
    shared=Mlp(56, "silu"),
    shared_gate=True,
)
GPT_OSS = Mixture(5, 2, Mlp(136, "swiglu_oai", bias=True, limit=1.5), "softmax_of_top", False, router_bias=True)
UNGATED = Mixture(6, 2, Mlp(40, "relu2", gated=False), "sigmoid", shared=Mlp(24, "relu2", gated=False))


def some(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def expert_weights(mlp: Mlp, count: int, dtype: torch.dtype, generator: torch.Generator) -> ExpertWeights:
    rows = 2 * mlp.size if mlp.gated else mlp.size
    up = (some(generator, count, rows, HIDDEN) / HIDDEN**0.5).to(dtype)
    down = (some(generator, count, HIDDEN, mlp.size) / mlp.size**0.5).to(dtype)
    if not mlp.bias:
        return ExpertWeights(up, down)
    return ExpertWeights(up, down, some(generator, count, rows).to(dtype), some(generator, count, HIDDEN).to(dtype))


def weights_of(mixture: Mixture, dtype: torch.dtype) -> MixtureWeights:
    generator = torch.Generator().manual_seed(5)
    experts = mixture.num_experts
    return MixtureWeights(
        router=(some(generator, experts, HIDDEN) / 4).to(dtype),
        experts=expert_weights(mixture.expert, len(mixture.held_experts), dtype, generator),
        router_bias=some(generator, experts).to(dtype) if mixture.router_bias else None,
        correction=some(generator, experts).to(dtype) if mixture.correction else None,
        shared=None if mixture.shared is None else expert_weights(mixture.shared, 1, dtype, generator),
        shared_gate=(some(generator, 1, HIDDEN) / 4).to(dtype) if mixture.shared_gate else None,
    )


def on_device(weights: Any, device: torch.device) -> Any:
    """A copy of a structure of tensors."""
    if isinstance(weights, torch.Tensor):
        return weights.to(device)
    if not is_dataclass(weights):
        return weights
    return replace(
        weights, **{field.name: on_device(getattr(weights, field.name), device) for field in fields(weights)}
    )


def run(
    mixture: Mixture, weights: MixtureWeights, x: torch.Tensor, runtime: CudaRuntime, num_filled: int | None = None
) -> torch.Tensor:
    """The kernels' [T, H], in memory that was full of something else, with rows further apart than they are wide.

    num_filled: rows that are a sequence's, None where the step is not captured.
    """
    num_rows, dtype, device = x.shape[0], x.dtype, runtime.device
    shared = 0 if mixture.shared is None else mixture.shared.size
    out = torch.full((num_rows, HIDDEN + 8), 768.0, dtype=dtype, device=device)
    columns = mixture.top_k * mixture.expert.size + shared
    inner = torch.full((num_rows * columns,), float("nan"), dtype=dtype, device=device)
    ids = torch.full((num_rows, mixture.top_k), -7, dtype=torch.int32, device=device)
    shares = torch.full((num_rows, mixture.top_k), float("nan"), device=device)
    memory = MixtureMemory(device)
    memory.take("sums", num_rows * (mixture.top_k + 1) * HIDDEN, torch.float32)
    memory._buffers["sums"].fill_(float("nan"))
    kernels = CudaMixture(runtime, memory, mixture, on_device(weights, device))
    filled = None if num_filled is None else torch.tensor([num_filled], dtype=torch.int32, device=device)
    kernels(x.to(device), out[:, :HIDDEN], MixtureRoom(ids, shares, inner, filled))
    assert (out[:, HIDDEN:] == 768.0).all(), "wrote beside the rows"
    return out[:, :HIDDEN].cpu()


def check(mixture: Mixture, dtype: torch.dtype, num_rows: int, runtime: CudaRuntime) -> None:
    weights = weights_of(mixture, dtype)
    x = some(torch.Generator().manual_seed(num_rows), num_rows, HIDDEN + 8).to(dtype)[:, :HIDDEN]
    expected = torch.zeros(num_rows, HIDDEN, dtype=torch.float64)
    torch_mixture.run_mixture(x.double(), mixture, weights, expected)
    found = run(mixture, weights, x, runtime)
    assert torch.allclose(found.double(), expected, atol=BOUND[dtype], rtol=BOUND[dtype])


# Few rows, tiles of 16 and tiles of 64 with a rest; without tensor cores, sorted and not.
@pytest.mark.parametrize("num_rows", [1, 23, 150])
def test_tensor_cores(num_rows: int) -> None:
    check(PLAIN, BF16, num_rows, EmulatedRuntime())


@pytest.mark.parametrize("mixture", [PLAIN, GPT_OSS, SHARED], ids=["plain", "bias", "shared"])
def test_tiles_of_128_rows(mixture: Mixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several items of each expert, the last not full, and several tiles of outputs; a shared expert's tiles too."""
    monkeypatch.setattr(mixture_launch, "_LARGE_PAIRS", 65)
    monkeypatch.setattr(mixture_launch, "_LARGE_STEP", 65)
    runtime, wide = EmulatedRuntime(), replace(mixture, expert=replace(mixture.expert, size=136))
    check(wide, F16, 500, runtime)
    tiles = {dict(each.defines)["ROWS"] for each in runtime._kernels if each.kernel == "expert_product"}
    assert tiles == {64, 128}, "the router's, and the experts'"


def test_few_pairs_have_small_tiles() -> None:
    """And devices of less shared memory fewer stages."""
    given = (BF16, EMULATED_PROPERTIES)
    assert [mixture_launch.product_rows(8192, pairs, *given) for pairs in (8, 32, 255, 256)] == [16, 64, 64, 128]
    assert mixture_launch.product_rows(512, 512, *given) == 64
    assert mixture_launch.router_rows(8192, *given) == 64
    avoiding = replace(EMULATED_PROPERTIES, avoided=frozenset({"mixture_large"}))
    assert mixture_launch.product_rows(8192, 256, BF16, avoiding) == 64
    ada = replace(EMULATED_PROPERTIES, capability=(8, 9), shared_bytes_per_block=99 * 1024)
    shape = mixture_launch.ProductShape(BF16, F32)
    launches = [mixture_launch.product_launch(shape, 128, each) for each in (EMULATED_PROPERTIES, ada)]
    assert [launch.shared_bytes // 1024 for launch in launches] == [108, 72]


def test_a_correction_of_another_type_is_refused() -> None:
    """The kernel would read its bytes as the router's type."""
    corrected = replace(PLAIN, scoring="sigmoid", correction=True)
    weights = weights_of(corrected, BF16)
    assert weights.correction is not None
    wide = replace(weights, correction=weights.correction.float())
    with pytest.raises(ValueError, match=r"a correction in torch\.float32 beside a router in torch\.bfloat16"):
        run(corrected, wide, torch.zeros(3, HIDDEN, dtype=BF16), EmulatedRuntime())


@pytest.mark.parametrize("num_rows", [3, 37])
def test_float32(num_rows: int) -> None:
    check(SHARED, F32, num_rows, EmulatedRuntime())


@pytest.mark.parametrize("mixture", [GPT_OSS, UNGATED], ids=["bias and limit", "no gate"])
def test_other_activations(mixture: Mixture) -> None:
    check(mixture, F16, 20, EmulatedRuntime(order=BACKWARD))
    check(mixture, F16, 9, EmulatedRuntime(SIMPLE))


@pytest.mark.parametrize(
    "changes",
    [
        {"scoring": "softmax", "normalised": False},
        {"scoring": "sqrt_softplus", "num_groups": 2, "top_groups": 1, "group_scoring": "max"},
        {"scoring": "sparse_mixer", "jitter": 0.1, "normalised": False, "top_k": 2},
    ],
    ids=lambda changes: changes["scoring"],
)
def test_routing(changes: dict[str, object]) -> None:
    check(replace(PLAIN, **changes), F32, 5, EmulatedRuntime())


@pytest.mark.parametrize("num_rows", [3, 37])
@pytest.mark.parametrize("held", [range(3), range(3, 8)], ids=["first", "others"])
def test_some_of_the_experts(held: range, num_rows: int) -> None:
    """Of a rank that has whole ones: memory of the others' products, which nobody writes, is not read either."""
    check(replace(SHARED, held=held), F32, num_rows, EmulatedRuntime())
    check(replace(PLAIN, held=range(1, 2)), BF16, num_rows, EmulatedRuntime())


def test_outputs_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two slices of the second product, the second one narrower, for want of room."""
    monkeypatch.setattr(mixture_launch, "SUM_BYTES", 6 * 5 * 4 * 64)
    monkeypatch.setattr(mixture_launch, "_OUTPUT_MULTIPLE", 64)
    assert mixture_launch.slice_outputs(5 * 4, HIDDEN) == 64
    check(SHARED, F32, 5, EmulatedRuntime())


def test_rows_of_nothing_choose_experts_that_exist() -> None:
    """Padding rows of a captured step may hold anything: what they choose is read as an expert's number."""
    weights = weights_of(SHARED, F32)
    x = torch.full((3, HIDDEN), float("nan"))
    run(SHARED, weights, x, EmulatedRuntime())


@pytest.mark.parametrize(("mixture", "num_rows", "filled"), [(PLAIN, 4, 2), (SHARED, 6, 1)], ids=["few", "sorted"])
def test_rows_that_pad_a_step_read_no_expert(mixture: Mixture, num_rows: int, filled: int) -> None:
    """Experts that no other row chose are not numbers, and neither is what the padding holds."""
    weights = weights_of(mixture, F32)
    x = some(torch.Generator().manual_seed(1), num_rows, HIDDEN)
    expected = torch.zeros(filled, HIDDEN, dtype=torch.float64)
    torch_mixture.run_mixture(x[:filled].double(), mixture, weights, expected)
    logits = torch_mixture.router_logits(x[:filled], weights)
    ids, _ = torch_mixture.route(logits, mixture, weights.correction)
    unread = sorted(set(range(mixture.num_experts)) - set(ids.flatten().tolist()))
    assert unread
    weights.experts.up[unread] = float("nan")  # type: ignore[index]
    x[filled:] = float("nan")
    found = run(mixture, weights, x, EmulatedRuntime(), filled)
    assert torch.allclose(found[:filled].double(), expected, atol=BOUND[F32], rtol=BOUND[F32])
    if mixture.shared is None:
        assert not found[filled:].any()


def test_what_the_kernels_leave_to_torch() -> None:
    assert computes_mixture(SHARED, BF16)
    assert not computes_mixture(replace(PLAIN, expert=Mlp(20, "silu")), BF16)
    assert not computes_mixture(replace(PLAIN, latent_size=16), BF16)
    assert not computes_mixture(replace(PLAIN, num_experts=2048), BF16)
    assert not computes_mixture(replace(PLAIN, expert=Mlp(40, "xielu", gated=False)), BF16)

"""Products with weights: of few rows, in few bits, of experts; and kernels that begin before the last one has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.weight_format import WeightFormat
from kvplan_engine.kernel_checks.case import TOLERANCE, Case, Comparison, Contest
from kvplan_engine.kernels import torch_mixture
from kvplan_engine.kernels.cuda.launching import families
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime, DeviceProperties
from kvplan_engine.kernels.cuda.mixtures import (
    LARGE_ROWS,
    CudaMixture,
    Matrix,
    MixtureMemory,
    ProductShape,
    Rows,
    Work,
    computes_mixture,
    even_items,
    run_product,
)
from kvplan_engine.kernels.cuda.ops import CudaOps
from kvplan_engine.kernels.cuda.products.float8 import BLOCK, float8_launch, multiplies_blocks
from kvplan_engine.kernels.cuda.products.quantised import CudaQuantised
from kvplan_engine.kernels.cuda.products.skinny import ACTIVATIONS, MOST_ROWS, CudaSkinny
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.kernels.mixture_weights import ExpertWeights, MixtureRoom, MixtureWeights
from kvplan_engine.kernels.quantised_weight import QuantisedWeight, linear_book

_OUTPUTS = 72
_INPUTS = 512
_SMALL_MLP = 96
_MIXTURE_HIDDEN = 384
_EPSILON = 1e-5
_TIMED_OUTPUTS, _TIMED_INPUTS = 4096, 7168
_CHAIN = 16  # kernels in a row that may overlap
_FORMULAS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": lambda x: functional.silu(x),
    "gelu": lambda x: functional.gelu(x),
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": lambda x: functional.relu(x),
    "relu2": lambda x: functional.relu(x).square(),
}
_SCALES = {1: torch.uint8, 2: torch.float16, 4: torch.float32}


@dataclass(frozen=True, slots=True)
class MatrixCase:
    """A dense weight [outputs, inputs], twice as many rows where ``activation`` is gated; None: nothing follows."""

    outputs: int
    inputs: int
    activation: str | None = None

    @property
    def weight_rows(self) -> int:
        """Count the rows of the weight: twice the outputs where they are gated."""
        return self.outputs * (2 if self.activation is not None and ACTIVATIONS[self.activation][1] else 1)


def skinny_cases(scalar: torch.dtype, matrices: tuple[MatrixCase, ...], properties: DeviceProperties) -> Iterator[Case]:
    """Make a case of each activation that follows one of ``matrices``; the speed is that of all of them in turn."""
    if not properties.has_tensor_kernels or scalar is torch.float32:
        return
    small = dict.fromkeys(MatrixCase(_OUTPUTS, _INPUTS, each.activation) for each in matrices)
    for number, matrix in enumerate(small):
        contest = partial(_skinny_contest, scalar, matrices) if number == 0 else None
        yield Case((families.SKINNY,), partial(_compare_skinny, scalar, matrix), contest)


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _compare_skinny(scalar: torch.dtype, matrix: MatrixCase, runtime: CudaRuntime) -> Comparison:
    """3 and 16 rows, with and without a residual."""
    weight = (_random(1, matrix.weight_rows, matrix.inputs) * matrix.inputs**-0.5).to(scalar)
    kernels, found, wanted = CudaSkinny(runtime), [], []
    for rows in (3, MOST_ROWS):
        x, residual = _random(2, rows, matrix.inputs).to(scalar), _random(3, rows, matrix.outputs).to(scalar)
        product = activated(matrix.activation, x.float() @ weight.float().t())
        for added in (None, residual):
            out = torch.zeros(rows, matrix.outputs, dtype=scalar, device=runtime.device)
            given = None if added is None else added.to(runtime.device)
            there = weight.to(runtime.device)
            kernels.multiply(x.to(runtime.device), there, None, out, activation=matrix.activation, residual=given)
            found.append(out)
            wanted.append(product if added is None else product + added.float())
    return Comparison(found, wanted, TOLERANCE[scalar])


def activated(name: str | None, product: torch.Tensor) -> torch.Tensor:
    """``product`` [T, N] in float32, behind the activation of this name; gates are the first half."""
    if name is None:
        return product
    kind, is_gated = ACTIVATIONS[name]
    gate, up = product.chunk(2, dim=-1) if is_gated else (product, None)
    result = _FORMULAS[kind](gate)
    return result if up is None else result * up


def _skinny_contest(scalar: torch.dtype, matrices: tuple[MatrixCase, ...], runtime: CudaRuntime) -> Contest:
    """One row, and sixteen, by each of the weights of a layer."""
    device, kernels = runtime.device, CudaSkinny(runtime)
    weights = [torch.zeros(each.weight_rows, each.inputs, dtype=scalar, device=device) for each in matrices]
    rows = [
        (torch.zeros(count, each.shape[1], dtype=scalar, device=device), each) for count in (1, 16) for each in weights
    ]
    outs = [torch.zeros(x.shape[0], weight.shape[0], dtype=scalar, device=device) for x, weight in rows]

    def by_ours() -> None:
        for (x, weight), out in zip(rows, outs, strict=True):
            kernels.multiply(x, weight, None, out)

    def by_torch() -> None:
        for (x, weight), out in zip(rows, outs, strict=True):
            torch.mm(x, weight.t(), out=out)

    return Contest(by_ours, by_torch)


# ---- kernels that begin early


def early_cases(scalar: torch.dtype, hidden: int, properties: DeviceProperties) -> Iterator[Case]:
    """A chain of kernels, each of which reads what the one before it writes."""
    if properties.has_dependent_launch:
        contest = partial(_early_contest, scalar, hidden)
        yield Case((families.DEPENDENT_LAUNCH,), partial(_compare_early, scalar, hidden), contest)


def _chain_of_norms(scalar: torch.dtype, hidden: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    x, delta = (_random(seed, 3, hidden).to(scalar).to(device) for seed in (1, 2))
    return delta, x, torch.ones(hidden, dtype=scalar, device=device)


def _run_chain(ops: Any, tensors: tuple[torch.Tensor, ...]) -> None:
    delta, residual, weight = tensors
    for _ in range(_CHAIN):
        ops.add_rms_norm(delta, residual, weight, _EPSILON, delta)


def _compare_early(scalar: torch.dtype, hidden: int, runtime: CudaRuntime) -> Comparison:
    """Compare every bit with the same kernels, launched one after the other."""
    results = []
    before = runtime.overlaps_launches
    for overlaps in (True, False):
        tensors = _chain_of_norms(scalar, hidden, runtime.device)
        runtime.overlaps_launches = overlaps
        try:
            _run_chain(CudaOps(runtime), tensors)
        finally:
            runtime.overlaps_launches = before
        results.append(list(tensors[:2]))
    return Comparison(results[0], results[1], 0.0)


def _early_contest(scalar: torch.dtype, hidden: int, runtime: CudaRuntime) -> Contest:
    ops, tensors = CudaOps(runtime), _chain_of_norms(scalar, hidden, runtime.device)

    def run(overlaps: bool) -> None:
        before, runtime.overlaps_launches = runtime.overlaps_launches, overlaps
        _run_chain(ops, tensors)
        runtime.overlaps_launches = before

    return Contest(partial(run, True), partial(run, False))


# ---- weights in few bits


def quantised_cases(
    scalar: torch.dtype, formats: tuple[WeightFormat, ...], properties: DeviceProperties
) -> Iterator[Case]:
    """Yield for each format: some rows by tensor cores where there are any, one by the plain kernel, rows widened."""
    simple = (families.QUANTISED_SIMPLE,)
    has_mma = properties.has_tensor_kernels and scalar is not torch.float32
    for each in formats:
        chain = (families.QUANTISED_MMA, *simple) if has_mma else simple
        yield Case(chain, partial(_compare_quantised, scalar, each, 9))
        yield Case(simple, partial(_compare_quantised, scalar, each, 2))
        yield Case((families.QUANTISED_WIDEN,), partial(_compare_widened, scalar, each))
    if WeightFormat(8, BLOCK, 4) in formats and multiplies_blocks(_block_weight(BLOCK), scalar, properties):
        enough = BLOCK * (1 + properties.num_multiprocessors // 4)  # for two tiles of 128 rows each
        for rows, outputs, timed_rows in ((24, 80, None), (40, 80, 64), (130, enough, 2048)):
            family = float8_launch(scalar, rows, outputs, properties).family
            contest = None if timed_rows is None else partial(_float8_contest, scalar, timed_rows)
            yield Case((family,), partial(_compare_float8, scalar, rows, outputs), contest)


def _block_weight(outputs: int, blocks: int = 4) -> QuantisedWeight:
    """Random codes of float8 with a scale for each 128 x 128."""
    generator = torch.Generator().manual_seed(3)
    book = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0.0)
    codes = torch.randn(outputs, blocks * BLOCK, generator=generator).to(torch.float8_e4m3fn).view(torch.uint8)
    sizes = (torch.rand(-(-outputs // BLOCK), blocks, generator=generator) + 0.5) * (blocks * BLOCK) ** -0.5
    scales = sizes.repeat_interleave(BLOCK, dim=0)[:outputs].contiguous()
    return QuantisedWeight(codes, scales, None, book, rounds_inputs=True)


def _compare_float8(scalar: torch.dtype, rows: int, outputs: int, runtime: CudaRuntime) -> Comparison:
    """Compare with torch's product of the same roundings of x."""
    weight = _block_weight(outputs)
    x = _random(1, rows, weight.num_inputs).to(scalar)
    groups = x.float().view(rows, -1, BLOCK)
    scales = groups.abs().amax(2, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    rounded = ((groups / scales).to(torch.float8_e4m3fn).float() * scales).view(rows, -1)
    out = torch.zeros(rows, outputs, dtype=scalar, device=runtime.device)
    _kernels_of(weight, scalar, runtime)(x.to(runtime.device), out)
    return Comparison([out], [rounded @ weight.dequantised().t()], TOLERANCE[scalar])


def _float8_contest(scalar: torch.dtype, rows: int, runtime: CudaRuntime) -> Contest:
    """A weight of many outputs; the twin widens it and multiplies by cuBLAS."""
    weight = _on_device(_block_weight(1, _TIMED_INPUTS // BLOCK), runtime.device)
    codes = torch.zeros(_TIMED_OUTPUTS, _TIMED_INPUTS, dtype=torch.uint8, device=runtime.device)
    scales = torch.ones(_TIMED_OUTPUTS, _TIMED_INPUTS // BLOCK, device=runtime.device)
    weight = replace(weight, codes=codes, scales=scales)
    x = torch.zeros(rows, _TIMED_INPUTS, dtype=scalar, device=runtime.device)
    out = torch.zeros(rows, _TIMED_OUTPUTS, dtype=scalar, device=runtime.device)
    memory = StepMemory(torch.zeros(2 * codes.numel(), dtype=torch.uint8, device=runtime.device))
    ways = [
        CudaQuantised(runtime, memory, replace(weight, rounds_inputs=rounds), None, scalar) for rounds in (True, False)
    ]
    return Contest(*(partial(way, x, out) for way in ways))


def _quantised_weight(given: WeightFormat) -> QuantisedWeight:
    """Random codes that count evenly, in groups as ``given`` has them."""
    groups = max(2, _INPUTS // given.group_size)
    inputs, generator = groups * given.group_size, torch.Generator().manual_seed(3)
    codes = torch.randint(0, 256, (_OUTPUTS, inputs * given.bits // 8), generator=generator, dtype=torch.uint8)
    book = linear_book(given.bits, 0 if given.has_minimums else 2 ** (given.bits - 1))
    sizes = (torch.rand(_OUTPUTS, groups, generator=generator) + 0.5) * inputs**-0.5 / book.std()
    stored = _SCALES[given.scale_bytes]
    scales = sizes.log2().round().add(127).to(torch.uint8) if stored is torch.uint8 else sizes.to(stored)
    minimums = (scales.float() * -book.mean()).to(stored) if given.has_minimums else None
    order = torch.randperm(inputs, generator=generator).int() if given.has_order else None
    return QuantisedWeight(codes, scales, minimums, book, order)


def _on_device(structure: Any, device: torch.device) -> Any:
    """A copy of a structure of tensors there."""
    if isinstance(structure, torch.Tensor):
        return structure.to(device)
    if not is_dataclass(structure) or isinstance(structure, type):
        return structure
    named = {each.name: _on_device(getattr(structure, each.name), device) for each in fields(structure)}
    return replace(structure, **named)


def _kernels_of(weight: QuantisedWeight, scalar: torch.dtype, runtime: CudaRuntime) -> CudaQuantised:
    memory = StepMemory()
    memory.bind(torch.zeros(1024**2, dtype=torch.uint8, device=runtime.device))
    return CudaQuantised(runtime, memory, _on_device(weight, runtime.device), None, scalar)


def _compare_quantised(scalar: torch.dtype, given: WeightFormat, rows: int, runtime: CudaRuntime) -> Comparison:
    weight = _quantised_weight(given)
    x = _random(1, rows, weight.num_inputs).to(scalar)
    out = torch.zeros(rows, _OUTPUTS, dtype=scalar, device=runtime.device)
    _kernels_of(weight, scalar, runtime)(x.to(runtime.device), out)
    return Comparison([out], [x.float() @ weight.dequantised().t()], TOLERANCE[scalar])


def _compare_widened(scalar: torch.dtype, given: WeightFormat, runtime: CudaRuntime) -> Comparison:
    weight, indices = _quantised_weight(given), torch.tensor([3, 0, _OUTPUTS - 1])
    out = torch.zeros(3, weight.num_inputs, dtype=scalar, device=runtime.device)
    _kernels_of(weight, scalar, runtime).rows(indices.to(runtime.device), out)
    return Comparison([out], [weight.dequantised()[indices]], TOLERANCE[scalar])


# ---- experts


def mixture_cases(scalar: torch.dtype, mixtures: tuple[Mixture, ...], properties: DeviceProperties) -> Iterator[Case]:
    """Yield cases for each mixture that the kernels compute, with experts of few inner elements: one row, and some."""
    simple = (families.MIXTURE_SIMPLE,)
    has_mma = properties.has_tensor_kernels and scalar is not torch.float32
    for mixture in mixtures:
        if not computes_mixture(mixture, scalar):
            continue
        shared = None if mixture.shared is None else replace(mixture.shared, size=_SMALL_MLP)
        small = replace(mixture, expert=replace(mixture.expert, size=_SMALL_MLP), shared=shared)
        yield Case(simple, partial(_compare_mixture, scalar, small, 2))
        yield Case((families.MIXTURE_MMA, *simple) if has_mma else simple, partial(_compare_mixture, scalar, small, 70))
        if has_mma:
            contest = partial(_large_contest, scalar, mixture.expert)
            yield Case((families.MIXTURE_LARGE,), partial(_compare_large, scalar, small.expert), contest)


def _compare_large(scalar: torch.dtype, mlp: Mlp, runtime: CudaRuntime) -> Comparison:
    """Both products of one expert with 150 rows, in tiles of 128."""
    weights, count = _expert_weights(mlp, 1, scalar, 10), 150
    there, work = _on_device(weights, runtime.device), Work.of_all(count, LARGE_ROWS)
    up = Matrix(there.up, there.up_bias, mlp.size, ProductShape.up(mlp, scalar), mlp.limit)
    down = Matrix(there.down, there.down_bias, _MIXTURE_HIDDEN, ProductShape(scalar, torch.float32))
    found, wanted = [], []
    for matrix, inputs in ((up, _MIXTURE_HIDDEN), (down, mlp.size)):
        x = _random(9, count, inputs).to(scalar)
        bias = 0.0 if matrix.bias is None else matrix.bias.cpu().float()
        product = x.float() @ matrix.weight[0].cpu().float().t() + bias
        wanted.append(torch_mixture.activated(product, mlp) if matrix is up else product)
        out = torch.zeros(count, matrix.outputs, dtype=matrix.shape.out, device=runtime.device)
        x = x.to(runtime.device)
        run_product(runtime, matrix, work, Rows(x.data_ptr(), inputs), Rows(out.data_ptr(), matrix.outputs))
        found.append(out)
    return Comparison(found, wanted, TOLERANCE[scalar])


def _large_contest(scalar: torch.dtype, mlp: Mlp, runtime: CudaRuntime) -> Contest:
    """The first product of eight experts with 256 pairs each, in tiles of 128 rows and of 64."""
    experts, count, device, size = 8, 2 * LARGE_ROWS, runtime.device, min(mlp.size, _TIMED_OUTPUTS // 2)
    outputs = size * (2 if mlp.gated else 1)
    weight = torch.zeros(experts, outputs, _TIMED_OUTPUTS, dtype=scalar, device=device)
    x = torch.zeros(experts * count, _TIMED_OUTPUTS, dtype=scalar, device=device)
    out = torch.zeros(experts * count, size, dtype=scalar, device=device)
    matrix = Matrix(weight, None, size, ProductShape.up(mlp, scalar), mlp.limit)

    def run(items: torch.Tensor, pairs: torch.Tensor, rows: int) -> None:
        work = Work(items.shape[0], experts * count, rows, items.data_ptr(), pairs.data_ptr())
        run_product(runtime, matrix, work, Rows(x.data_ptr(), x.shape[1]), Rows(out.data_ptr(), size))

    ways = ((*even_items(experts, count, rows, device), rows) for rows in (LARGE_ROWS, LARGE_ROWS // 2))
    return Contest(*(partial(run, *way) for way in ways))


def _expert_weights(mlp: Mlp, count: int, scalar: torch.dtype, seed: int) -> ExpertWeights:
    rows, hidden = (2 * mlp.size if mlp.gated else mlp.size), _MIXTURE_HIDDEN
    up = (_random(seed, count, rows, hidden) * hidden**-0.5).to(scalar)
    down = (_random(seed + 1, count, hidden, mlp.size) * mlp.size**-0.5).to(scalar)
    biases = (_random(seed + 2, count, rows).to(scalar), _random(seed + 3, count, hidden).to(scalar))
    return ExpertWeights(up, down, *biases) if mlp.bias else ExpertWeights(up, down)


def _mixture_weights(mixture: Mixture, scalar: torch.dtype) -> MixtureWeights:
    """Return weights of experts that a router tells apart, so that rounding changes nobody's choice."""
    experts, hidden = mixture.num_experts, _MIXTURE_HIDDEN
    return MixtureWeights(
        router=_random(5, experts, hidden).to(scalar),
        experts=_expert_weights(mixture.expert, len(mixture.held_experts), scalar, 10),
        router_bias=_random(6, experts).to(scalar) if mixture.router_bias else None,
        correction=_random(7, experts).to(scalar) if mixture.correction else None,
        shared=None if mixture.shared is None else _expert_weights(mixture.shared, 1, scalar, 20),
        shared_gate=_random(8, 1, hidden).to(scalar) if mixture.shared_gate else None,
    )


def _compare_mixture(scalar: torch.dtype, mixture: Mixture, rows: int, runtime: CudaRuntime) -> Comparison:
    weights, device = _mixture_weights(mixture, scalar), runtime.device
    x = _random(9, rows, _MIXTURE_HIDDEN).to(scalar)
    columns = mixture.top_k * mixture.expert.size + (0 if mixture.shared is None else mixture.shared.size)
    out = torch.zeros(rows, _MIXTURE_HIDDEN, dtype=scalar, device=device)
    kernels = CudaMixture(runtime, MixtureMemory(device), mixture, _on_device(weights, device))
    ids = torch.zeros(rows, mixture.top_k, dtype=torch.int32, device=device)
    inner = torch.zeros(rows * columns, dtype=scalar, device=device)
    kernels(x.to(device), out, MixtureRoom(ids, torch.zeros(ids.shape, device=device), inner))
    wanted = torch.zeros(rows, _MIXTURE_HIDDEN)
    torch_mixture.run_mixture(x.float(), mixture, weights, wanted)
    return Comparison([out], [wanted], TOLERANCE[scalar])

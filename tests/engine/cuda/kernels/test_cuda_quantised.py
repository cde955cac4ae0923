"""Products with quantised weights by the CUDA kernels' own source, run on the CPU: those of the dequantised weights."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from quantised_cases import KINDS, Kind, random_weight

from kvplan_engine.kernels.cuda.launching.emulation import BACKWARD, EMULATED_PROPERTIES, FORWARD, EmulatedRuntime
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError
from kvplan_engine.kernels.cuda.products.float8 import float8_launch, multiplies_blocks, multiplies_float8
from kvplan_engine.kernels.cuda.products.quantised import CudaQuantised, WeightShape, quantised_launch
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.kernels.quantised_weight import QuantisedWeight

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
BOUND = {F32: 2e-5, F16: 2e-3, BF16: 2**-7}
SHUFFLED = 7
KIND = {kind.name: kind for kind in KINDS}


def weight_of(kind: Kind, outputs: int, num_groups: int) -> QuantisedWeight:
    """As these kernels take it; of fp8 without the codes that are no numbers, which no checkpoint may have."""
    weight = random_weight(kind, outputs, num_groups).plain
    return replace(weight, codes=weight.codes & 0xFE) if kind.name == "fp8" else weight


def rows_of(count: int, inputs: int, dtype: torch.dtype, pad: int = 8) -> torch.Tensor:
    """[count, inputs], with ``pad`` elements of something else behind each row."""
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, inputs + pad, generator=generator).to(dtype)[:, :inputs]


def on_device(weight: QuantisedWeight, device: torch.device) -> QuantisedWeight:
    parts = {field.name: getattr(weight, field.name) for field in fields(weight)}
    return replace(weight, **{name: part.to(device) for name, part in parts.items() if isinstance(part, torch.Tensor)})


def product(
    weight: QuantisedWeight,
    bias: torch.Tensor | None,
    x: torch.Tensor,
    runtime: CudaRuntime,
    room: int = 1 << 16,
    pad: int = 3,
) -> torch.Tensor:
    """The kernels' [T, outputs] in memory that was full of something else."""
    device, outputs = runtime.device, weight.num_outputs
    memory = StepMemory(torch.full((room,), 0x7F, dtype=torch.uint8, device=device))
    out = torch.full((x.shape[0], outputs + pad), 768.0, dtype=x.dtype, device=device)
    there = None if bias is None else bias.to(device)
    kernels = CudaQuantised(runtime, memory, on_device(weight, device), there, x.dtype)
    kernels(x.to(device), out[:, :outputs])
    assert (out[:, outputs:] == 768.0).all(), "wrote beside the rows"
    return out[:, :outputs].cpu()


def check(
    kind: Kind,
    dtype: torch.dtype,
    num_rows: int,
    *,
    outputs: int = 21,
    groups: int = 3,
    pad: int = 8,
    runtime: CudaRuntime | None = None,
) -> None:
    weight = weight_of(kind, outputs, groups)
    bias = torch.randn(outputs, generator=torch.Generator().manual_seed(1)).to(dtype)
    x = rows_of(num_rows, weight.num_inputs, dtype, pad)
    want = x.double() @ weight.dequantised().double().t() + bias.double()
    found = product(weight, bias, x, runtime or EmulatedRuntime()).double()
    assert ((found - want).abs() <= BOUND[dtype] * (1 + want.abs())).all()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_few_rows_of_every_format(kind: Kind) -> None:
    check(kind, F32, 2)


@pytest.mark.parametrize("kind", [KIND[name] for name in ("q4_0", "act_order", "q5_1", "fp8", "nf4")], ids=str)
def test_many_rows(kind: Kind) -> None:
    """Widened in one piece, and row by row for want of room."""
    check(kind, F32, 19)
    weight = weight_of(kind, 5, 3)
    x = rows_of(17, weight.num_inputs, F32)
    found = product(weight, None, x, EmulatedRuntime(), room=4 * weight.num_inputs * 2)
    assert torch.allclose(found, x @ weight.dequantised().t(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "num_rows"), [(BF16, 1), (F16, 3), (F16, 17)])
def test_rows_and_types(dtype: torch.dtype, num_rows: int) -> None:
    check(KIND["q4_k"], dtype, num_rows, runtime=EmulatedRuntime(order=BACKWARD))


@pytest.mark.parametrize(
    ("name", "dtype", "num_rows", "outputs", "groups"),
    [
        ("q4_1", BF16, 7, 37, 5),  # a last step that only some lanes have inputs of, a tile that is not full
        ("q8_0", F16, 16, 70, 3),
        ("nf4", BF16, 13, 5, 8),  # warps that share the inputs
        ("fp8", BF16, 9, 33, 2),
    ],
)
def test_tensor_cores(name: str, dtype: torch.dtype, num_rows: int, outputs: int, groups: int) -> None:
    check(KIND[name], dtype, num_rows, outputs=outputs, groups=groups, runtime=EmulatedRuntime(order=BACKWARD))


def test_warps_share_the_inputs_of_few_outputs() -> None:
    check(KIND["q4_0"], F32, 2, outputs=5, groups=3 * 32 * 2)


def test_rows_of_codes_that_are_no_vectors() -> None:
    """20 bytes each, and rows of x that do not begin at vectors."""
    check(replace(KIND["q4_1"], group=8), F32, 2, groups=5, pad=1)


def test_nothing_is_multiplied_with_no_rows() -> None:
    check(KIND["q4_0"], F32, 0)


@pytest.mark.parametrize("name", ["q8_0", "act_order"])
def test_rows_come_back(name: str) -> None:
    weight = random_weight(KIND[name], 9, 2)
    indices = torch.tensor([8, 0, 3, 3])
    out = torch.full((4, weight.num_inputs + 8), 768.0)
    runtime = EmulatedRuntime()
    CudaQuantised(runtime, StepMemory(), weight, None, F32).rows(indices, out[:, : weight.num_inputs])
    assert torch.allclose(out[:, : weight.num_inputs], weight.dequantised()[indices], atol=1e-6)
    assert (out[:, weight.num_inputs :] == 768.0).all()


def float8_weight(**changes: object) -> QuantisedWeight:
    """One scale for each output, as it says of itself that inputs are rounded."""
    weight = weight_of(KIND["fp8"], 32, 2)
    scales = weight.scales[:, :1].expand_as(weight.scales).contiguous()
    return replace(weight, scales=scales, rounds_inputs=True, **changes)


def check_float8(runtime: CudaRuntime) -> None:
    """Both sides rounded: the product of exactly these numbers, and in pieces where there is little room."""
    weight, device = float8_weight(), runtime.device
    bias = torch.randn(32).to(BF16)
    x = rows_of(21, weight.num_inputs, BF16)
    x[3] = 0
    scales = x.double().abs().amax(1, keepdim=True) / 448
    scales[3] = 1
    rounded = (x.float() / scales.float()).to(torch.float8_e4m3fn).double() * scales
    want = rounded @ weight.dequantised().double().t() + bias.double()
    room = torch.full((1 << 16,), 0x7F, dtype=torch.uint8, device=device)
    for each in (room, room[: 5 * (weight.num_inputs + 4)]):
        out = torch.full((21, 32), 768.0, dtype=BF16, device=device)
        kernels = CudaQuantised(runtime, StepMemory(each), on_device(weight, device), bias.to(device), BF16)
        kernels(x.to(device), out)
        assert ((out.cpu().double() - want).abs() <= 2**-7 * (1 + want.abs())).all()


def test_many_rows_in_float8() -> None:
    check_float8(EmulatedRuntime())


@pytest.mark.parametrize(
    ("weight", "scalar", "capability"),
    [
        (float8_weight(), BF16, (8, 6)),
        (float8_weight(), F16, (9, 0)),
        (replace(float8_weight(), rounds_inputs=False), BF16, (9, 0)),
        (replace(weight_of(KIND["fp8"], 32, 2), rounds_inputs=True), BF16, (9, 0)),
        (replace(weight_of(KIND["q8_0"], 32, 2), rounds_inputs=True), BF16, (9, 0)),
        (float8_weight().with_rows(lambda rows: rows[:20]), BF16, (9, 0)),
    ],
    ids=["before 8.9", "float16", "inputs as they are", "scales of groups", "another book", "20 outputs"],
)
def test_what_is_not_multiplied_in_float8(
    weight: QuantisedWeight, scalar: torch.dtype, capability: tuple[int, int]
) -> None:
    assert multiplies_float8(float8_weight(), BF16, replace(EMULATED_PROPERTIES, capability=(8, 9)))
    assert not multiplies_float8(weight, scalar, replace(EMULATED_PROPERTIES, capability=capability))


def block_weight(outputs: int, num_blocks: int) -> QuantisedWeight:
    """Codes of fp8 with a scale for each 128 x 128, the last of them cut off."""
    weight = weight_of(replace(KIND["fp8"], group=128), outputs, num_blocks)
    scales = weight.scales[::128].repeat_interleave(128, dim=0)[:outputs].contiguous()
    return replace(weight, scales=scales, rounds_inputs=True)


@pytest.mark.parametrize(
    ("rows", "outputs", "scalar", "order", "capability"),
    [
        (17, 144, BF16, FORWARD, (9, 0)),  # one tile of 32 rows that is not full, scales of two blocks
        (17, 144, BF16, FORWARD, (8, 9)),  # by products of float8
        (70, 80, F16, BACKWARD, (9, 0)),  # tiles of 64
        (150, 272, BF16, SHUFFLED, (12, 0)),  # of 128
        (150, 272, BF16, SHUFFLED, (10, 0)),
        (40, 16, BF16, FORWARD, (9, 0)),  # no tile is full
    ],
)
def test_blocks_in_float8(
    rows: int, outputs: int, scalar: torch.dtype, order: int, capability: tuple[int, int]
) -> None:
    runtime = EmulatedRuntime(replace(EMULATED_PROPERTIES, capability=capability), order)
    check_blocks(rows, outputs, scalar, runtime)
    assert {each.kernel for each in runtime._kernels} == {"quantise_rows", "float8_product"}


def check_blocks(rows: int, outputs: int, scalar: torch.dtype, runtime: CudaRuntime) -> None:
    """The product of exactly these numbers, whole and in pieces where there is little room; strided rows of both."""
    weight = block_weight(outputs, 5)
    assert multiplies_blocks(weight, scalar, runtime.properties)
    bias = torch.randn(outputs, generator=torch.Generator().manual_seed(1)).to(scalar)
    x = rows_of(rows, weight.num_inputs, scalar)
    x[3] = 0
    groups = x.double().view(rows, -1, 128)
    scales = (groups.abs().amax(2, keepdim=True).float() / 448).double()
    scales[scales == 0] = 1
    rounded = (groups.float() / scales.float()).to(torch.float8_e4m3fn).double() * scales
    want = rounded.view(rows, -1) @ weight.dequantised().double().t() + bias.double()
    for room in (rows * 1024, 33 * (weight.num_inputs + 20)):
        found = product(weight, bias, x, runtime, room=room, pad=8).double()
        assert ((found - want).abs() <= BOUND[scalar] * (1 + want.abs())).all()


def test_other_blocks_are_widened() -> None:
    weight, h100 = block_weight(256, 2), replace(EMULATED_PROPERTIES, num_multiprocessors=132)
    assert multiplies_blocks(weight, BF16, replace(h100, capability=(8, 9)))
    assert not multiplies_blocks(weight, BF16, replace(h100, capability=(8, 6)))
    assert not multiplies_blocks(weight, F32, h100)
    assert not multiplies_blocks(replace(weight, rounds_inputs=False), BF16, h100)
    assert not multiplies_blocks(weight.with_rows(lambda rows: rows[64:]), BF16, h100), "blocks begin elsewhere"
    assert [float8_launch(BF16, rows, 7168, h100).rows for rows in (17, 64, 65, 128, 256)] == [32, 64, 64, 64, 128]
    ada = replace(h100, capability=(8, 9), shared_bytes_per_block=99 * 1024)
    assert dict(float8_launch(BF16, 4096, 7168, ada).variant.defines)["STAGES"] == 2


def test_blocks_are_widened_where_their_kernel_is_avoided() -> None:
    weight = block_weight(32, 1)
    runtime = EmulatedRuntime(replace(EMULATED_PROPERTIES, avoided=frozenset({"float8_short"})))
    x = rows_of(40, 128, BF16)
    found = product(weight, None, x, runtime, pad=8)
    assert {each.kernel for each in runtime._kernels} == {"widen_rows"}
    assert torch.allclose(found.float(), x.float() @ weight.dequantised().t(), atol=0.05, rtol=0.02)


def test_pieces_of_many_rows_are_not_for_a_kernel_that_is_avoided() -> None:
    """Where there is little room a piece has few rows, for which it would be chosen."""
    runtime = EmulatedRuntime(replace(EMULATED_PROPERTIES, avoided=frozenset({"float8_short"})))
    check_blocks(150, 272, BF16, runtime)
    tiles = {dict(each.defines)["ROWS"] for each in runtime._kernels if each.kernel == "float8_product"}
    assert tiles == {128}


def test_what_does_not_fit_is_refused() -> None:
    weight = random_weight(KIND["q4_0"], 4, 2)
    with pytest.raises(CudaKernelError, match="groups of 24 inputs"):
        WeightShape.of(random_weight(replace(KIND["q4_0"], group=24), 4, 2), F32)
    small = CudaQuantised(EmulatedRuntime(), StepMemory(torch.zeros(16, dtype=torch.uint8)), weight, None, F32)
    with pytest.raises(ValueError, match="does not fit 16 bytes"):
        small(torch.zeros(17, weight.num_inputs), torch.zeros(17, 4))
    with pytest.raises(ValueError, match="x is"):
        small(torch.zeros(1, 8), torch.zeros(1, 4))


def test_few_outputs_are_shared_by_warps_and_many_are_not() -> None:
    h100 = replace(EMULATED_PROPERTIES, num_multiprocessors=132)
    shape = WeightShape(BF16, F16, 4, 128, "linear", True, 16, 4096, 28672)
    wide, narrow = (quantised_launch(replace(shape, num_outputs=count), 1, h100) for count in (28672, 1024))
    assert (wide.outputs, narrow.outputs) == (16, 4)
    assert wide.grid(28672, 1) == (1792, 1)
    assert quantised_launch(shape, 16, h100).grid(28672, 16) == (448, 1)
    turing = replace(h100, capability=(7, 5))
    assert quantised_launch(replace(shape, scalar=F16), 16, turing).grid(28672, 16) == (3584, 2)

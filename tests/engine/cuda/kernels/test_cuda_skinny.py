"""Products of few rows by the CUDA kernel's own source, run on the CPU, with all that may follow one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from kernel_matrix import properties_of
from torch.nn import functional

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.kernels.cuda.launching.emulation import BACKWARD, EMULATED_PROPERTIES, EmulatedRuntime
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.products.skinny import ACTIVATIONS, MOST_ROWS, CudaSkinny, SkinnyShape, skinny_launch
from kvplan_engine.layers.cuda_skinny import SkinnyWeights
from kvplan_engine.layers.projection import StoredWeight

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
BOUND = {F16: 2**-10, BF16: 2**-7}
ACTIVATION = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
    "relu2": lambda x: torch.relu(x).square(),
}
SHUFFLED = 7


@dataclass(frozen=True, slots=True)
class Case:
    """One product; outputs of the weight's rows, whatever follows."""

    rows: int
    outputs: int = 21
    inputs: int = 264
    scalar: torch.dtype = BF16
    activation: str | None = None
    has_bias: bool = False
    has_residual: bool = False

    @property
    def is_gated(self) -> bool:
        return self.activation is not None and ACTIVATIONS[self.activation][1]


@dataclass(slots=True)
class Operands:
    """x and residual are views of wider rows, as a model's buffers are."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    residual: torch.Tensor | None

    @classmethod
    def of(cls, case: Case, device: torch.device) -> Operands:
        generator = torch.Generator().manual_seed(case.outputs)
        weight_rows = case.outputs * (2 if case.is_gated else 1)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(case.scalar).to(device)

        return cls(
            random(case.rows, case.inputs + 8)[:, : case.inputs],
            random(weight_rows, case.inputs) / case.inputs**0.5,
            random(weight_rows) if case.has_bias else None,
            random(case.rows, case.outputs + 3)[:, : case.outputs] if case.has_residual else None,
        )

    def expected(self, case: Case) -> torch.Tensor:
        """[rows, outputs] float64."""
        value = self.x.double() @ self.weight.double().t()
        if self.bias is not None:
            value += self.bias.double()
        if case.activation is not None:
            gate, *up = value.chunk(2, dim=1) if case.is_gated else (value,)
            value = ACTIVATION[ACTIVATIONS[case.activation][0]](gate)
            value = value * up[0] if up else value
        return value if self.residual is None else value + self.residual.double()


def product(case: Case, operands: Operands, kernels: CudaSkinny) -> torch.Tensor:
    """[rows, outputs], in memory that was full of something else."""
    out = torch.full((case.rows + 1, case.outputs + 3), 768.0, dtype=case.scalar, device=operands.x.device)
    target = out[: case.rows, : case.outputs]
    options = {"activation": case.activation, "residual": operands.residual}
    kernels.multiply(operands.x, operands.weight, operands.bias, target, **options)
    assert (out[:, case.outputs :] == 768.0).all(), "wrote beside the rows"
    assert (out[case.rows] == 768.0).all(), "wrote below the rows"
    return target


def check(case: Case, runtime: CudaRuntime | None = None, slack: float = 1e-5) -> None:
    """In float32 and rounded once, so half of the type's last bit and float32's ``slack`` is what may be off."""
    kernels = CudaSkinny(runtime or EmulatedRuntime(order=BACKWARD))
    operands = Operands.of(case, kernels.runtime.device)
    found, expected = product(case, operands, kernels).double(), operands.expected(case)
    assert ((found - expected).abs() <= BOUND[case.scalar] / 2 * expected.abs() + slack).all()


@pytest.mark.parametrize("scalar", [F16, BF16])
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 16])
@pytest.mark.parametrize(("outputs", "inputs"), [(21, 8), (48, 136), (70, 1312)])
def test_products(rows: int, scalar: torch.dtype, outputs: int, inputs: int) -> None:
    """Outputs that fill no tile; less than a lane's inputs for most lanes, a last step with some, several rounds."""
    check(Case(rows, outputs, inputs, scalar, has_bias=inputs == 136))


@pytest.mark.parametrize("activation", ["silu_and_mul", "gelu_tanh_and_mul", "gelu_new", "gelu", "relu2"])
def test_activations(activation: str) -> None:
    check(Case(3, 13, 72, F16, activation, has_bias=True))
    check(Case(8, 24, 264, F16, activation))


def test_a_gate_with_two_tiles() -> None:
    check(Case(13, 43, 136, F16, "silu_and_mul", has_bias=True))


def test_products_that_begin_early() -> None:
    """The beginnings of rows are asked for: a row's inputs, or the part of them that a block has."""
    runtime = EmulatedRuntime()
    runtime.overlaps_launches = True
    check(Case(3, 21, 264, F16), runtime)
    check(Case(9, 5, 2200, F16, "silu_and_mul"), runtime)


@pytest.mark.parametrize("rows", [5, 12])
def test_a_residual_is_added(rows: int) -> None:
    """Beside the output, and in its place."""
    case = Case(rows, 37, 200, F16, has_bias=True, has_residual=True)
    check(case)
    operands = Operands.of(case, torch.device("cpu"))
    beside, residual = product(case, operands, CudaSkinny(EmulatedRuntime())), operands.residual
    assert residual is not None
    CudaSkinny(EmulatedRuntime()).multiply(operands.x, operands.weight, operands.bias, residual, residual=residual)
    assert torch.equal(residual, beside)


@pytest.mark.parametrize("activation", [None, "silu_and_mul"])
@pytest.mark.parametrize("rows", [4, 16])
def test_blocks_share_the_inputs_of_few_outputs(rows: int, activation: str | None) -> None:
    """Twice, as the first product must leave the counters as it found them."""
    case, runtime = Case(rows, 5, 2200, F16, activation, has_residual=True), EmulatedRuntime(order=SHUFFLED)
    assert skinny_launch(SkinnyShape(F16, 5, 2200, activation), rows, runtime.properties).grid == (1, 4)
    check(case, runtime)
    kernels, operands = CudaSkinny(runtime), Operands.of(case, runtime.device)
    assert torch.equal(product(case, operands, kernels), product(case, operands, kernels))


@pytest.mark.parametrize(("outputs", "inputs", "activation"), [(40, 1000, "silu_and_mul"), (13, 1496, None)])
def test_a_rows_result_does_not_depend_on_its_batch(outputs: int, inputs: int, activation: str | None) -> None:
    """Nor on its place, or on the order in which threads run: to the last bit, in both kernels, with shared inputs."""
    case, kernels = Case(16, outputs, inputs, F16, activation), CudaSkinny(EmulatedRuntime())
    all_rows = Operands.of(case, torch.device("cpu"))
    expected = product(case, all_rows, kernels)
    for chosen in ([5], [9, 0, 3], list(range(8)), list(range(15, -1, -1))):
        operands = replace(all_rows, x=all_rows.x[chosen])
        found = product(replace(case, rows=len(chosen)), operands, CudaSkinny(EmulatedRuntime(order=SHUFFLED)))
        assert torch.equal(found, expected[chosen])


def stored(weight: torch.Tensor, **wanted: str | bool) -> StoredWeight:
    return StoredWeight(Weights({"up.weight": weight}), "up", **wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("weight", "capability", "is_taken"),
    [
        (torch.zeros(4, 8, dtype=BF16), (8, 0), True),
        (torch.zeros(4, 8, dtype=F16), (10, 0), True),
        (torch.zeros(4, 8, dtype=F16), (7, 5), False),
        (torch.zeros(4, 8, dtype=F32), (9, 0), False),
        (torch.zeros(4, 12, dtype=BF16), (9, 0), False),
        (torch.zeros(33, dtype=BF16)[1:].view(4, 8), (9, 0), False),
        (torch.zeros(4, 16, dtype=BF16)[:, :8], (9, 0), False),
    ],
    ids=["bfloat16", "float16", "before 8.0", "float32", "12 inputs", "an odd address", "rows apart"],
)
def test_what_is_taken(weight: torch.Tensor, capability: tuple[int, int], is_taken: bool) -> None:
    kind = SkinnyWeights(EmulatedRuntime(properties_of(capability)))
    assert kind.takes(stored(weight)) == is_taken
    assert not kind.takes(stored(weight, is_embedding=True, only_rows=True))


def test_other_rows_are_torchs() -> None:
    """Too many, and those that begin at no multiple of 16 bytes; the weight is still there to be looked up."""
    weight = torch.randn(24, 16).to(BF16)
    linear = SkinnyWeights(EmulatedRuntime()).make(stored(weight, activation="silu_and_mul"))
    memory = torch.randn(MOST_ROWS + 1, 25).to(BF16)
    for x, is_taken in ((memory[:, :16], False), (memory[:3, 1:17], False), (memory[:3, :16].contiguous(), True)):
        assert linear.takes(x) == is_taken
        out = torch.empty(x.shape[0], 24, dtype=BF16)
        linear(x, out)
        assert torch.allclose(out.float(), x.float() @ weight.float().t(), atol=1e-2, rtol=1e-2)
    linear(memory[:0, :16], out[:0])
    looked_up = torch.empty(2, 16, dtype=BF16)
    linear.rows(torch.tensor([7, 0]), looked_up)
    assert torch.equal(looked_up, weight[[7, 0]])


def test_what_does_not_fit_is_refused() -> None:
    kernels = CudaSkinny(EmulatedRuntime())
    x, weight, out = (torch.zeros(shape, dtype=BF16) for shape in ((2, 16), (6, 16), (2, 6)))
    with pytest.raises(ValueError, match="x is"):
        kernels.multiply(x[:, :8], weight, None, out)
    with pytest.raises(ValueError, match="no matrix that the kernel"):
        kernels.multiply(x[:, :12], weight[:, :12].contiguous(), None, out)
    with pytest.raises(ValueError, match="weight is"):
        kernels.multiply(x, weight, None, out, activation="silu_and_mul")
    with pytest.raises(ValueError, match="bias is"):
        kernels.multiply(x, weight, weight[0], out)
    with pytest.raises(ValueError, match="residual is"):
        kernels.multiply(x, weight, None, out, residual=out[:1])
    with pytest.raises(ValueError, match="1 to 16 aligned rows"):
        kernels.multiply(x.expand(2, 16)[:0], weight, None, out[:0])


def test_how_llamas_products_are_divided() -> None:
    """On an H100 blocks share inputs only of what tensor parallelism leaves, alike for any number of rows."""
    h100 = replace(EMULATED_PROPERTIES, num_multiprocessors=132)
    products = {(6144, 4096): 384, (4096, 4096): 256, (4096, 14336): 256, (128256, 4096): 8016}
    for (outputs, inputs), blocks in products.items():
        assert skinny_launch(SkinnyShape(BF16, outputs, inputs), 1, h100).grid == (blocks, 1)
        assert skinny_launch(SkinnyShape(BF16, outputs, inputs), 9, h100).grid == (blocks // 2, 1)
    gated = SkinnyShape(BF16, 14336, 4096, "silu_and_mul")
    assert skinny_launch(gated, 8, h100).grid == (1792, 1)
    few = SkinnyShape(BF16, 1280, 8192)
    assert skinny_launch(few, 8, h100).grid == (80, 4)
    assert skinny_launch(few, 16, h100).grid == (40, 4)
    assert skinny_launch(few, 8, h100).spans == 16

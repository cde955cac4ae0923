"""The operations of ``kernels.interface.Ops`` that a model needs, against ``torch_ops``; and drawing tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from kvplan_engine.kernel_checks.case import TOLERANCE, Case, Comparison
from kvplan_engine.kernels import lora, torch_ops
from kvplan_engine.kernels.arguments import InputRows
from kvplan_engine.kernels.cuda.all_reduce import MOST_RANKS, SHARED_BYTES, OneShotAllReduce, halves_of, signals_of
from kvplan_engine.kernels.cuda.checks import VECTOR_BYTES
from kvplan_engine.kernels.cuda.launching import families
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime, OpenedMemory
from kvplan_engine.kernels.cuda.ops import CudaOps
from kvplan_engine.kernels.cuda.products.lora import CudaLora
from kvplan_engine.kernels.cuda.sampling import DRAW_ROW, CudaDraws, StepTokens
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.kernels.interface import Ops
from kvplan_engine.kernels.lora import LoraRows, LoraWeights
from kvplan_engine.kernels.workspace_sizes import ROWS_OF_A_GROUP

_OPERATION_CASES_ROWS = 5
_EPSILON = 1e-5
_FEWEST_LOGITS = 4
_COUNTS_MULTIPLE = 8
_EXACT = ("argmax_rows", "copy_blocks", "copy_inputs")


@dataclass(frozen=True, slots=True)
class Operations:
    """What a model computes beside products. norms, activations: names of operations. widths: of what is normalised.

    inner: columns of what an activation gives. vocabulary: logits of a token. head: size of a head that turns, and how
    much of it does; None where none does.
    """

    scalar: torch.dtype
    norms: tuple[tuple[str, int], ...]
    activations: tuple[str, ...]
    inner: int
    vocabulary: int
    head: tuple[int, int] | None


Arguments = Callable[[torch.device], tuple[tuple[object, ...], list[torch.Tensor]]]
"""What makes an operation's arguments on a device, and says which hold results afterwards."""


def operation_cases(needed: Operations) -> Iterator[Case]:
    """One for each operation, and for drawing tokens."""
    scalar = needed.scalar
    for name, arguments in operations_of(needed):
        yield Case((name,), partial(_operation_cases_compare, name, arguments, scalar))
    if needed.vocabulary >= _FEWEST_LOGITS:
        yield Case((families.DRAWS,), partial(_compare_draws, scalar, needed.vocabulary))


def operations_of(needed: Operations) -> Iterator[tuple[str, Arguments]]:
    """Each with arguments for it."""
    scalar = needed.scalar
    for name, width in needed.norms:
        yield name, partial(_norm_arguments, name, scalar, width)
    for name in needed.activations:
        yield name, partial(_activation_arguments, name, scalar, needed.inner)
    if needed.head is not None:
        yield "rope_inplace", partial(_rotation_arguments, scalar, *needed.head)
    yield "argmax_rows", partial(_argmax_arguments, scalar, needed.vocabulary)
    yield "copy_blocks", _copy_arguments
    yield "copy_inputs", _input_arguments


def _operation_cases_compare(name: str, arguments: Arguments, scalar: torch.dtype, runtime: CudaRuntime) -> Comparison:
    return compare_operation(CudaOps(runtime), runtime.device, name, arguments, scalar)


def compare_operation(ops: Ops, on: torch.device, name: str, arguments: Arguments, scalar: torch.dtype) -> Comparison:
    """The operation of ``ops`` on a device, against that of torch, to the bit where nothing is computed."""
    results = []
    sides: tuple[tuple[Ops, torch.device], ...] = ((ops, on), (torch_ops, torch.device("cpu")))
    for source, device in sides:
        given, outputs = arguments(device)
        getattr(source, name)(*given)
        results.append(outputs)
    return Comparison(results[0], results[1], 0.0 if name in _EXACT else TOLERANCE[scalar])


def _some(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _norm_arguments(
    name: str, scalar: torch.dtype, width: int, device: torch.device
) -> tuple[tuple[object, ...], list[torch.Tensor]]:
    x, delta, weight, bias = (
        _some(seed, *shape).to(scalar).to(device) for seed, shape in enumerate(_norm_shapes(width))
    )
    out = torch.zeros_like(x)
    parameters = (weight, bias) if name.endswith("layer_norm") else (weight,)
    if name.startswith("add_"):
        return (delta, x, *parameters, _EPSILON, out), [out, x]
    return (x, *parameters, _EPSILON, out), [out]


def _norm_shapes(width: int) -> list[tuple[int, ...]]:
    return [(_OPERATION_CASES_ROWS, width), (_OPERATION_CASES_ROWS, width), (width,), (width,)]


def _activation_arguments(
    name: str, scalar: torch.dtype, inner: int, device: torch.device
) -> tuple[tuple[object, ...], list[torch.Tensor]]:
    if name == "silu_and_mul":
        both = (2 * _some(1, _OPERATION_CASES_ROWS, 2 * inner)).to(scalar).to(device)
        out = torch.zeros(_OPERATION_CASES_ROWS, inner, dtype=scalar, device=device)
        return (both, out), [out]
    x = (2 * _some(1, _OPERATION_CASES_ROWS, inner)).to(scalar).to(device)
    return (x,), [x]


def _rotation_arguments(
    scalar: torch.dtype, head_size: int, rotary: int, device: torch.device
) -> tuple[tuple[object, ...], list[torch.Tensor]]:
    x = _some(1, _OPERATION_CASES_ROWS, 3, head_size).to(scalar).to(device)
    positions = torch.tensor([0, 7, 3, 7, 2], device=device)
    return (x, positions, _some(2, 8, rotary).to(device)), [x]


def _argmax_arguments(
    scalar: torch.dtype, vocabulary: int, device: torch.device
) -> tuple[tuple[object, ...], list[torch.Tensor]]:
    """Exactly one logit of each row is the largest, at its beginning, its end and in between."""
    logits = _some(1, _OPERATION_CASES_ROWS, vocabulary).clamp(-3, 3).to(scalar)
    logits[torch.arange(_OPERATION_CASES_ROWS), _places(vocabulary)] = 8.0
    out = torch.full((_OPERATION_CASES_ROWS,), -1, dtype=torch.int64, device=device)
    return (logits.to(device), out), [out]


def _places(vocabulary: int) -> torch.Tensor:
    return torch.linspace(0, vocabulary - 1, _OPERATION_CASES_ROWS).long()


def _copy_arguments(device: torch.device) -> tuple[tuple[object, ...], list[torch.Tensor]]:
    pool = _some(1, 6, 2, 2, 1, 16, 16).to(device)
    pairs = torch.tensor([[0, 5], [4, 1]])
    return (pool, pool, pairs), [pool]


def _input_arguments(device: torch.device) -> tuple[tuple[object, ...], list[torch.Tensor]]:
    tokens = _pinned(torch.tensor([5, -1, 9, -2, 11]), device)
    table = _pinned(torch.arange(24, dtype=torch.int32).view(3, 8), device)
    chosen = torch.tensor([70, 80], device=device)
    targets = [torch.zeros_like(each, device=device) for each in (tokens, table)]
    rows = [InputRows(tokens, targets[0], 4), InputRows(table, targets[1], 2, 5)]
    return (rows, chosen), targets


def _pinned(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.pin_memory() if device.type == "cuda" else tensor


def _compare_draws(scalar: torch.dtype, vocabulary: int, runtime: CudaRuntime) -> Comparison:
    """Greedy rows, and rows that draw among tokens of which one alone is likely: what follows is certain."""
    device = runtime.device
    (logits, _), _ = _argmax_arguments(scalar, vocabulary, device)
    assert isinstance(logits, torch.Tensor)
    logits[:, :] = torch.where(logits == 8.0, 60.0, logits.float()).to(scalar)
    rows = np.zeros(_OPERATION_CASES_ROWS, DRAW_ROW)
    rows["top_p"], rows["max_distance"], rows["key"] = 1.0, np.inf, np.arange(1, _OPERATION_CASES_ROWS + 1)
    rows["scale"][2:] = 1.0  # 0: the likeliest
    rows["top_k"][4:], rows["top_p"][3:] = 3, 0.9
    draws = torch.from_numpy(rows.view(np.uint8).reshape(_OPERATION_CASES_ROWS, -1)).to(device)
    columns = -(-vocabulary // _COUNTS_MULTIPLE) * _COUNTS_MULTIPLE
    counts = torch.zeros(1, columns, dtype=torch.int16, device=device)
    out = torch.full((_OPERATION_CASES_ROWS,), -1, dtype=torch.int64, device=device)
    CudaDraws(runtime)(logits, draws, counts, StepTokens(torch.arange(_OPERATION_CASES_ROWS, device=device)), out)
    return Comparison([out], [_places(vocabulary)], 0.0)


# What adapters add to a product, against its definition in float32.


_SEGMENTS = (48, 24)
_SLOTS = 2
_LORA_CASES_ROWS = 11
_GROUPS = ((0, range(8)), (1, range(8, 9)), (-1, range(0)), (0, range(10, 11)))
"""The slot of each group of rows, and the rows; one is no group, and row 9 has no adapter."""
_ROOM = 1 << 16


def lora_cases(scalar: torch.dtype, inputs: int, rank: int | None) -> Iterator[Case]:
    """One for adapters of ``rank``; none where it is None."""
    if rank is not None:
        yield Case((families.LORA,), partial(_lora_cases_compare, scalar, inputs, rank))


def correct_in_torch(x: torch.Tensor, out: torch.Tensor, weights: LoraWeights, rows: LoraRows) -> None:
    """The definition, for groups of which some are none (slot -1). It waits for the device."""
    is_group = rows.slots >= 0
    lora.correct(x, out, weights, LoraRows(rows.rows[is_group], rows.slots[is_group]))


def _lora_cases_compare(scalar: torch.dtype, inputs: int, rank: int, runtime: CudaRuntime) -> Comparison:
    generator, device = torch.Generator().manual_seed(1), runtime.device
    down = (torch.randn(_SLOTS, len(_SEGMENTS) * rank, inputs, generator=generator) * inputs**-0.5).to(scalar)
    up = (torch.randn(_SLOTS, rank, sum(_SEGMENTS), generator=generator) * rank**-0.5).to(scalar)
    x = torch.randn(_LORA_CASES_ROWS, inputs, generator=generator).to(scalar)
    before = torch.randn(_LORA_CASES_ROWS, sum(_SEGMENTS), generator=generator).to(scalar)
    numbers = torch.full((len(_GROUPS), ROWS_OF_A_GROUP), -1, dtype=torch.int32)
    for group, (_, members) in enumerate(_GROUPS):
        numbers[group, : len(members)] = torch.tensor(list(members), dtype=torch.int32)
    slots = torch.tensor([slot for slot, _ in _GROUPS], dtype=torch.int32)
    found = before.to(device)
    kernels = CudaLora(runtime, StepMemory(torch.zeros(_ROOM, dtype=torch.uint8, device=device)))
    there = LoraWeights(down.to(device), up.to(device), _SEGMENTS)
    kernels(x.to(device), found, there, LoraRows(numbers.to(device), slots.to(device)))
    wanted = before.float()
    correct_in_torch(x.float(), wanted, LoraWeights(down.float(), up.float(), _SEGMENTS), LoraRows(numbers, slots))
    return Comparison([found], [wanted], TOLERANCE[scalar])


# Sums over ranks, as far as one device shows them: the peers' values are there, and they have said so, before the call.


_SUMMED_VALUES = 5000
_SUMMED_CALLS = 3
"""Both halves, and the first one again."""


def all_reduce_cases(scalar: torch.dtype, num_ranks: int) -> Iterator[Case]:
    """One for so many ranks; none for one, or for more than the kernel takes."""
    if 1 < num_ranks <= MOST_RANKS:
        yield Case((families.ALL_REDUCE,), partial(_compare_sums, scalar, num_ranks))


def _compare_sums(scalar: torch.dtype, num_ranks: int, runtime: CudaRuntime) -> Comparison:
    """The last rank's sums, and what it leaves in its peers' signals."""
    device, own = runtime.device, num_ranks - 1
    shared = torch.zeros(num_ranks, SHARED_BYTES, dtype=torch.uint8, device=device)
    memory = [OpenedMemory(each.data_ptr()) for each in shared]
    all_reduce = OneShotAllReduce(runtime, own, memory)
    all_reduce.give_up()  # at once, should it look for signals elsewhere
    found, wanted = [], []
    for call in range(1, _SUMMED_CALLS + 1):
        values = _some(call, num_ranks, _SUMMED_VALUES // VECTOR_BYTES * VECTOR_BYTES).to(scalar)
        num_bytes = values[0].nbytes
        for peer in range(own):
            halves = halves_of(shared[peer], call)
            num_blocks = -(-num_bytes // halves.shape[1])
            filled = torch.zeros(num_blocks * halves.shape[1], dtype=torch.uint8)
            filled[:num_bytes] = values[peer].view(torch.uint8)
            halves[:num_blocks] = filled.view(num_blocks, -1).to(device)
            signals_of(shared[own])[:num_blocks, peer] = call
        x = values[own].clone().to(device)
        all_reduce(x)
        found += [x, signals_of(shared[0])[:num_blocks, own].clone()]
        wanted += [values.float().sum(dim=0), torch.full((num_blocks,), call)]
    return Comparison(found, wanted, TOLERANCE[scalar])

"""Dense weights rounded to the nearest code when they are loaded: fit for sizes and speed, not for the best answers."""

from __future__ import annotations

import torch

from kvplan_engine.checkpoints.parameters import StoredParameter
from kvplan_engine.checkpoints.quantised.floats import BOOKS
from kvplan_engine.checkpoints.weights import ReadTensor
from kvplan_engine.description.weight_format import Recipe, WeightFormat
from kvplan_engine.kernels.quantised_weight import QuantisedWeight, packed_codes

_BLOCK = 128
_ELEMENTS_AT_ONCE = 1 << 21


class RoundingReader:
    """Dense tensors, rounded as they are read."""

    def __init__(self, read: ReadTensor, parameters: list[StoredParameter], recipe: Recipe) -> None:
        self._read, self._recipe = read, recipe
        sources = [source for stored in parameters for source in stored.sources]
        self._transposed = {source.name for source in sources if source.transposed}
        self._in_columns = {source.name for source in sources if source.in_columns}

    def format_of(self, name: str, num_inputs: int) -> WeightFormat | None:
        """See QuantisedReader.format_of."""
        return self._recipe.format_of(num_inputs)

    def read(self, name: str) -> QuantisedWeight:
        """See QuantisedReader.read."""
        weight = self._read(name)
        if weight.ndim == 3:  # all experts
            weight = (weight.transpose(1, 2) if name in self._in_columns else weight).flatten(0, 1)
        return rounded(weight.t() if name in self._transposed else weight, self._recipe)


def rounded(weight: torch.Tensor, recipe: Recipe) -> QuantisedWeight:
    """``weight`` [num_outputs, num_inputs] of any float dtype, by a recipe that has a format for its inputs.

    Some rows at a time: values and codes on their way take many times the bytes that they end with.
    """
    largest = _largest_of_all(weight) if recipe.scale == "tensor" else None
    rows = max(_BLOCK, _ELEMENTS_AT_ONCE // weight.shape[1] // _BLOCK * _BLOCK)
    codes, scales, minimums = zip(*(_rounded_rows(part, recipe, largest) for part in weight.split(rows)), strict=True)
    book = BOOKS[recipe.codes]
    return QuantisedWeight(
        torch.cat(codes),
        torch.cat(scales),
        torch.cat(minimums) if recipe.has_minimums else None,
        book - book[0] if recipe.has_minimums else book,
        torch.arange(weight.shape[1], dtype=torch.int32) if recipe.has_order else None,
    )


def _rounded_rows(
    weight: torch.Tensor, recipe: Recipe, largest: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(codes, scales, minimums) of whole blocks of rows; minimums only mean something where the recipe has them.

    largest: magnitude of the whole weight, for a recipe with one scale.
    """
    held = recipe.format_of(weight.shape[1])
    assert held is not None, "the caller asks for the format first"
    groups = weight.float().contiguous().unflatten(1, (-1, held.group_size))
    book = BOOKS[recipe.codes]
    stored: torch.Tensor | None = None
    if recipe.has_minimums:
        least, most = _extremes(groups, recipe)
        scales = _not_zero((most - least) / (book.numel() - 1))
        codes = ((groups - least.unsqueeze(2)) / scales.unsqueeze(2)).round_()
    else:
        least = magnitudes = _magnitudes(groups, recipe, largest)
        is_even = recipe.codes in ("int4", "int8")
        scales = _not_zero(magnitudes / (book.numel() // 2 - 1 if is_even else book.abs().max()))
        if recipe.scale == "power":
            stored, scales = _powers_from(scales)
        codes = _nearest(groups / scales.unsqueeze(2), book)
    bytes_of_codes = codes.clamp_(0, book.numel() - 1).to(torch.uint8).flatten(1)
    return packed_codes(bytes_of_codes, held.bits), scales.contiguous() if stored is None else stored, least


def _powers_from(scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The least powers of two that are not less than ``scales``, in bytes (E8M0) and in float32."""
    exponents = torch.frexp(scales / 2).exponent.clamp(-126, 127)
    exponents += torch.ldexp(torch.ones_like(scales), exponents) < scales
    powers = torch.ldexp(torch.ones_like(scales), exponents)
    return (exponents + 127).to(torch.uint8), powers


def _extremes(groups: torch.Tensor, recipe: Recipe) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the greatest value of what shares a scale: [num_outputs, num_groups] each."""
    least, most = groups.aminmax(dim=2)
    if recipe.group_size == 0:
        least, most = (
            each.expand_as(least).contiguous()
            for each in (least.amin(dim=1, keepdim=True), most.amax(dim=1, keepdim=True))
        )
    return least, most


def _magnitudes(groups: torch.Tensor, recipe: Recipe, largest: torch.Tensor | None) -> torch.Tensor:
    """The largest magnitude in what shares a scale: [num_outputs, num_groups]."""
    each = groups.abs().amax(dim=2)
    if largest is not None:
        return largest.expand_as(each).contiguous()
    if recipe.scale == "block":
        return torch.cat([rows.amax(dim=0, keepdim=True).expand_as(rows) for rows in each.split(_BLOCK)])
    if recipe.group_size == 0:
        return each.amax(dim=1, keepdim=True).expand_as(each).contiguous()
    return each


def _largest_of_all(weight: torch.Tensor) -> torch.Tensor:
    least, most = weight.aminmax()
    return torch.maximum(least.abs(), most.abs()).float()


def _not_zero(scales: torch.Tensor) -> torch.Tensor:
    return torch.where(scales == 0, 1.0, scales)


def _nearest(values: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    """The code whose entry of ``book`` lies nearest to each value; of codes that stand for the same, the first.

    So what is no number in E4M3, and 0 in its book, is never chosen.
    """
    ordered, codes = book.sort(stable=True)
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    ordered, codes = ordered[is_first], codes[is_first]
    between = (ordered[1:] + ordered[:-1]) / 2
    return codes[torch.bucketize(values, between)]

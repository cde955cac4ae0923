"""Which parameters of a model are held in few bits, what they take, and how they get among its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from kvplan_engine.checkpoints.parameters import Source, StoredParameter
from kvplan_engine.checkpoints.quantised.reader import QuantisedReader, as_tensors, may_be_held, read_parts
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.parameters import model_parameters
from kvplan_engine.description.weight_format import Recipe, WeightFormat
from kvplan_engine.errors import SettingsError


@dataclass(frozen=True, slots=True)
class HeldParameter:
    """formats: of each of its sources."""

    stored: StoredParameter
    formats: tuple[WeightFormat, ...]

    @property
    def num_bytes(self) -> int:
        """With one order of the inputs for all sources, or those of an expert: they are multiplied with the same x."""
        inputs = self.stored.shape[1]
        orders = (self.stored.num_experts or 1) if any(each.has_order for each in self.formats) else 0
        matrices = (
            replace(each, has_order=False).num_bytes(source.num_rows, inputs)
            for source, each in zip(self.stored.sources, self.formats, strict=True)
        )
        return 4 * inputs * orders + sum(matrices)


@dataclass(frozen=True, slots=True)
class HeldWeights:
    """parameters: by name. reader: of the checkpoint called ``where``; None where nothing is held.

    is_plain: for kernels that know codes of 4 and 8 bits, and scales of one level. rounds_inputs: what they are
    multiplied with is rounded too, wherever their codes count evenly.
    """

    parameters: Mapping[str, HeldParameter] = field(default_factory=dict)
    reader: QuantisedReader | None = None
    where: str = ""
    is_plain: bool = False
    rounds_inputs: bool = False

    @property
    def plain(self) -> HeldWeights:
        """The same weights in what every kernel knows, which may take more."""
        parameters = {
            name: replace(each, formats=tuple(found.plain for found in each.formats))
            for name, each in self.parameters.items()
        }
        return replace(self, parameters=parameters, is_plain=True)

    @property
    def num_parameters(self) -> int:
        """Elements that need no tensor of the model's dtype."""
        return sum(math.prod(each.stored.shape) for each in self.parameters.values())

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self.parameters.values())

    def fill(self, weights: dict[str, torch.Tensor], device: torch.device, skipped: Sequence[str] = ()) -> None:
        """Read every parameter into ``weights``. skipped: beginnings of names that are left out.

        SettingsError where inputs are to be rounded and no weight's codes count evenly.
        """
        num_rounding = 0
        for name, parameter in self.parameters.items():
            if self.reader is None or name.startswith(tuple(skipped)):
                continue
            parts = read_parts(parameter.stored, self.reader, self.where)
            parts = [part.plain for part in parts] if self.is_plain else parts
            parts = [replace(part, rounds_inputs=True) for part in parts] if self.rounds_inputs else parts
            num_rounding += sum(part.multiplies_integers for part in parts)
            named = as_tensors(name.removesuffix(".weight"), parts)
            weights |= {key: tensor.to(device) for key, tensor in named.items()}
        if self.rounds_inputs and not num_rounding:
            raise SettingsError(
                "activation_quantization 'int8' is for weights in few bits whose codes count evenly, of which this "
                "model has none.",
                hint="leave it out, or set quantization to int8 or int4",
            )


def refuse_held(held: HeldWeights) -> None:
    """SettingsError where any weight is held in few bits: its groups are not divided over ranks yet."""
    if held.parameters:
        raise SettingsError(
            f"the engine does not divide weights in few bits over ranks yet, and {held.where} has some.",
            hint="quantization='none' widens them when they are loaded",
        )


def plan_held(
    model: ModelDescription,
    parameters: list[StoredParameter],
    reader: QuantisedReader,
    where: str,
    *,
    with_ends: bool,
) -> HeldWeights:
    """All parameters that may be held as they are stored, and whose sources all have a format.

    with_ends: embedding and head too.
    """
    held = {}
    for stored in parameters:
        if not may_be_held(stored.parameter, model) or (stored.parameter.layer is None and not with_ends):
            continue
        formats = [_format_of(source, stored, reader) for source in stored.sources]
        if None not in formats and _is_one_weight(stored, model, formats):
            held[stored.name] = HeldParameter(stored, tuple(each for each in formats if each is not None))
    return HeldWeights(held, reader, where)


def _format_of(source: Source, stored: StoredParameter, reader: QuantisedReader) -> WeightFormat | None:
    """None where the source is not held in few bits. Scales that are multiplied with a factor are float32."""
    found = reader.format_of(source.name, stored.shape[1])
    return found if found is None or source.scaling is None else replace(found, scale_bytes=4, block_size=0)


def _is_one_weight(stored: StoredParameter, model: ModelDescription, formats: Sequence[WeightFormat | None]) -> bool:
    """Whether the sources are stored alike, where that is wanted: a mixture's kernels know one format of a matrix."""
    layer = None if stored.parameter.layer is None else model.layers[stored.parameter.layer]
    is_of_mixture = layer is not None and isinstance(layer.feed_forward, Mixture)
    in_mixture = is_of_mixture and stored.parameter.part.startswith(("experts.", "shared."))
    return not in_mixture or len(set(formats)) == 1


def rounded_weight_bytes(model: ModelDescription, recipe: Recipe, element_bytes: int) -> int:
    """All weights of ``model`` if it were loaded and rounded by ``recipe``; the others have ``element_bytes`` each."""
    total = 0
    for parameter in model_parameters(model):
        is_held = parameter.layer is not None and may_be_held(parameter, model)
        found = recipe.format_of(parameter.shape[1]) if is_held else None
        held = (
            None
            if found is None
            else HeldParameter(StoredParameter(parameter, (Source("", parameter.shape[0]),)), (found,))
        )
        total += math.prod(parameter.shape) * element_bytes if held is None else held.num_bytes
    return total

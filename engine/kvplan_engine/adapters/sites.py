"""The products that adapters may correct, and the bytes that their slots take. No torch.

qkv    three stacked products: A [3 r, hidden], B [queries + keys + values, r]
output one product:            A [r, heads x size], B [hidden, r]
up     gate and up, or one     A [2 r, hidden], B [2 x size, r]
down   one product             A [r, size], B [hidden, r]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvplan_engine.description.feed_forward import Mlp
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.parameters import model_parameters


@dataclass(frozen=True, slots=True)
class Site:
    """One stored product. name: its parameter's, without the leaf. segments: outputs of each of those stacked in it."""

    name: str
    num_inputs: int
    segments: tuple[int, ...]

    @property
    def num_outputs(self) -> int:
        return sum(self.segments)

    def num_elements(self, rank: int) -> int:
        """Number of elements of one adapter's A and B."""
        return rank * (len(self.segments) * self.num_inputs + self.num_outputs)


def sites_of(model: ModelDescription) -> list[Site]:
    """Attention's products and the MLP's, layer by layer."""
    return list(_sites(model))


def _sites(model: ModelDescription) -> Iterator[Site]:
    for parameter in model_parameters(model):
        if parameter.layer is None or parameter.leaf != "weight":
            continue
        if parameter.part in _parts(model.layers[parameter.layer]):
            outputs, inputs = parameter.shape
            segments = tuple(size for _, size in parameter.rows) or (outputs,)
            yield Site(f"layers.{parameter.layer}.{parameter.part}", inputs, segments)


def _parts(layer: Layer) -> tuple[str, ...]:
    """The names of the layer's products that adapters may correct."""
    mixer = layer.mixers[0] if layer.mixers else None
    products: tuple[str, ...] = ()
    if isinstance(mixer, Attention):
        is_stacked = mixer.gate != "element" and not mixer.value_is_key
        products = ("qkv", "output") if is_stacked else ("output",)
    return products + (("up", "down") if isinstance(layer.feed_forward, Mlp) else ())


def slot_bytes(model: ModelDescription, itemsize: int, *, max_loras: int, max_lora_rank: int) -> int:
    """What the slots of ``max_loras`` adapters take on the device, whichever products these correct."""
    return max_loras * itemsize * sum(site.num_elements(max_lora_rank) for site in sites_of(model))

"""The reader of each architecture's config. Modules are imported when a model needs them, not before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module

from kvplan.catalog.architectures import Architecture, architectures
from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.spec import ExtraModule, LayerSpec, RopeSpec
from kvplan.catalog.tensors import Tensor
from kvplan.catalog.typed_json import FactError

_FAMILIES = "kvplan.catalog.families."


def find_reader(architecture: str) -> Reader | None:
    """Return the reader of ``architecture``, or None when it is not known."""
    row = architectures().get(architecture)
    return None if row is None else reader_of(row)


def reader_of(row: Architecture) -> Reader:
    """Return the reader that a row names: the function, or it with the row of its module's table of families."""
    module_name, function = row.reader.split(":")
    module = import_module(_FAMILIES + module_name)
    reader: Callable[..., Body] = getattr(module, function)
    if row.family is None:
        return reader
    if row.family not in module.FAMILIES:
        raise FactError(f"'{row.architecture}' is read by '{row.family}', which FAMILIES of {module.__name__} lacks.")
    return partial(reader, family=module.FAMILIES[row.family])


def known_architectures() -> tuple[str, ...]:
    """Return all names that ``find_reader`` knows, sorted."""
    return tuple(architectures())


@dataclass(frozen=True, slots=True)
class Body:
    """A model without its name: the part of a ``ModelSpec`` that only the family's reader can know."""

    layers: tuple[LayerSpec, ...]
    tensors: tuple[Tensor, ...]
    hidden_size: int
    vocab_size: int
    tied: bool
    max_position_embeddings: int | None
    rope: RopeSpec | None = None
    extras: tuple[ExtraModule, ...] = ()
    further_ropes: tuple[RopeSpec, ...] = ()
    residual_streams: int = 1


Reader = Callable[[ConfigView], Body]

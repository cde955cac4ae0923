"""Models and GPUs known by name: what ``kvplan models`` and ``kvplan gpus`` print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from kvplan.api.arguments import checks_arguments, frame
from kvplan.catalog.devices.gpus import GpuProfile, gpu_row, gpus_document, known_gpus
from kvplan.commands.printing.known import print_gpus, print_models
from kvplan.commands.printing.render import OutputFormat, captured
from kvplan.estimate.known_models import SCHEMA as MODELS_SCHEMA
from kvplan.estimate.known_models import KnownModel, known_models

if TYPE_CHECKING:
    import pandas

Item = TypeVar("Item")


@dataclass(frozen=True)
class Listing(Sequence[Item]):
    """Models or GPUs known by name: a sequence with the command's table and document."""

    items: tuple[Item, ...]

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Item, ...]: ...

    def __getitem__(self, index: int | slice) -> Item | tuple[Item, ...]:
        return self.items[index]


@dataclass(frozen=True)
class Models(Listing[KnownModel]):
    """Models known by name. ``str()`` is the command's table."""

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kvplan models --json`` prints."""
        return {"schema": MODELS_SCHEMA, "models": [model.as_json() for model in self.items]}

    def to_frame(self) -> pandas.DataFrame:
        """Return a DataFrame with one row per model. Needs pandas."""
        return frame([model.as_json() for model in self.items])

    def __str__(self) -> str:
        return captured(lambda: print_models(self.items, OutputFormat.table))


@dataclass(frozen=True)
class Gpus(Listing[GpuProfile]):
    """Devices known by name. ``str()`` is the command's table."""

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kvplan gpus --json`` prints."""
        return gpus_document(self.items)

    def to_frame(self) -> pandas.DataFrame:
        """Return a DataFrame with one row per device. Needs pandas."""
        return frame([gpu_row(profile) for profile in self.items])

    def __str__(self) -> str:
        return captured(lambda: print_gpus(self.items, OutputFormat.table))


@checks_arguments()
def models(search: str | None = None) -> Models:
    """List the models known by name whose name, id or alias contains ``search``. UsageError where there is none."""
    return Models(known_models(search))


@checks_arguments()
def gpus(search: str | None = None) -> Gpus:
    """List the devices whose id, name or alias contains ``search``, or a slice. UsageError where there is none."""
    return Gpus(tuple(known_gpus(search)))

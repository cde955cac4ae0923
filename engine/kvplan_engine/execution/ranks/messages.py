"""What the first rank tells the others, in the order in which they do it, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan_engine.blocks.transfers import Transfer
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.division import Rank
from kvplan_engine.errors import EngineError
from kvplan_engine.models.step_batch import GraphSize

LOST_PEER = 75
"""Exit code of a rank that ended because another one had."""


@dataclass(frozen=True, slots=True)
class Load:
    """The first message: load the part of ``rank``, and meet the others. Answered twice, see ``Joining``.

    config: with the device's kind and memory as the first rank found them. source: see ``Engine``. meeting: the path of
    their ``open_store``.
    """

    config: EngineConfig
    source: Any
    rank: Rank
    meeting: str
    num_threads: int


@dataclass(frozen=True, slots=True)
class Joining:
    """The first answer to Load: libraries are there, and from now on the others are waited for."""


@dataclass(frozen=True, slots=True)
class Carve:
    """A workspace for these settings, instead of the one before and its pool. Answered with Needs."""

    config: EngineConfig


@dataclass(frozen=True, slots=True)
class MakePool:
    """A pool of so many blocks. Answered."""

    num_blocks: int
    kv_dtype: str


@dataclass(frozen=True, slots=True)
class CaptureGraphs:
    """Capture the step at every size of ``sizes``. Answered with the device memory that it took, in bytes.

    A rank that cannot ends: the others wait for it in the middle of a step.
    """

    sizes: tuple[GraphSize, ...]


@dataclass(frozen=True, slots=True)
class DropPool:
    """Free the pool, and the graphs with it."""


@dataclass(frozen=True, slots=True)
class MakeMover:
    """Host memory for so many blocks, and transfers to and from it. Answered."""

    num_host_slots: int


@dataclass(frozen=True, slots=True)
class Touch:
    """Write to the workspace and to these blocks, and measure what steps take on top from now on."""

    num_blocks: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Answered with the bytes that steps took since Touch, or that the rank holds beside ``tensor_bytes`` if more."""

    tensor_bytes: int


@dataclass(frozen=True, slots=True)
class Move:
    """Carry out transfers between blocks and slots."""

    transfers: list[Transfer]


@dataclass(frozen=True, slots=True)
class HeadOfRows:
    """Take part in the logits of rows ``first`` to ``last`` - 1 of the last step."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer instead of another one: an EngineError of ``kind``, and its attributes."""

    kind: type[EngineError]
    attributes: dict[str, Any]

    @classmethod
    def of(cls, error: EngineError) -> Refusal:
        return cls(type(error), dict(vars(error)))

    @property
    def error(self) -> EngineError:
        """The error as it was raised."""
        return self.kind(**self.attributes)

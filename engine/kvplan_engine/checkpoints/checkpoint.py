"""An open checkpoint: what its tensors are called, and how to read them."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan_engine.checkpoints.parameters import StoredParameter
from kvplan_engine.checkpoints.quantised.reader import QuantisedReader
from kvplan_engine.checkpoints.weights import OpenPart, ReadTensor


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """where: for messages. read: one tensor in a float dtype, widened where it is stored in few bits. quantised: the
    tensors that are; None where none are. open_part: reads parts of tensors; None where only whole ones can be read.
    """

    where: str
    parameters: list[StoredParameter]
    read: ReadTensor
    quantised: QuantisedReader | None = None
    open_part: OpenPart | None = None

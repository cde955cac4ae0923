"""What the decoder asks of a call for all layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.models.step_batch import StepBatch


class LayerRun(Protocol):
    """All layers of a model over one step."""

    def __call__(self, batch: StepBatch, kv: KvPool, workspace: Workspace, num_layers: int | None = None) -> None:
        """From ``normed`` of the first norm to ``normed`` of the last; the step's K and V are in ``kv`` afterwards.

        With ``batch.sampled_attention`` the last norm's rows are those of ``batch.sampled_rows``. num_layers: so many
        of the first layers alone; ``normed`` is then what the next one would read.
        IndexError where the batch does not fit the pool or the rotary table.
        """
        ...

    def time_operations(self) -> None:
        """Add up from now on how long each operation takes: one reading of a clock for each."""
        ...

    def operation_seconds(self) -> Mapping[str, float]:
        """Time of each operation over all layers and steps since time_operations(); {} before."""
        ...

"""What the parts of a layer share in one step: the batch, the pool and the workspace."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan_engine.kernels.states.rows import StateStep
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.kv_pool import KvPool
from kvplan_engine.models.step_batch import StepBatch


@dataclass(frozen=True, slots=True)
class StepSpace:
    """One step's inputs and where it writes: keys and values into the pool ``kv``, all else into the workspace."""

    batch: StepBatch
    kv: KvPool
    workspace: Workspace

    @property
    def states(self) -> StateStep:
        """The sequences' states, in a model whose layers have some."""
        assert self.batch.states is not None, "no layer of this model has a state"
        return self.batch.states

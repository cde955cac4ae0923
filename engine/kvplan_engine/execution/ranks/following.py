"""A rank that follows: its part of the model, its workspace and pool, and what it does on the first one's word."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from kvplan_engine.config import EngineConfig
from kvplan_engine.description.division import Rank
from kvplan_engine.device.allocation import allocating, loading_weights
from kvplan_engine.device.collectives import Collectives, open_store
from kvplan_engine.device.cuda import open_cuda
from kvplan_engine.device.device import CpuDevice, Device, PeakMeter, held_beside, resolve_dtype
from kvplan_engine.errors import EngineError
from kvplan_engine.execution.inputs.step_inputs import StepIndices
from kvplan_engine.execution.model_runner import ModelRunner
from kvplan_engine.execution.ranks.messages import (
    CaptureGraphs,
    Carve,
    DropPool,
    HeadOfRows,
    Joining,
    Load,
    MakeMover,
    MakePool,
    Measured,
    Move,
    Refusal,
    Touch,
)
from kvplan_engine.memory.plan import Needs, kv_layout, resolve_max_model_len
from kvplan_engine.models.loaded_model import LoadedModel
from kvplan_engine.models.step_batch import StepBatch
from kvplan_engine.offload.mover import Mover


class FollowingRunner(ModelRunner):
    """A ModelRunner whose logits are a part of a row: the first rank chooses the tokens."""

    def choose_in_graph(self, logits: torch.Tensor, batch: StepBatch) -> None:
        """See ModelRunner.choose_in_graph."""


class FollowingRank:
    """Loads its part as ``order`` says, and then does what comes through ``connection``.

    EngineError where the part cannot be loaded, RuntimeError where another rank is lost.
    """

    def __init__(self, order: Load, connection: Connection) -> None:
        torch.set_num_threads(order.num_threads)
        self._connection = connection
        self._device = open_rank_device(order.config, order.rank)
        connection.send(Joining())
        store = open_store(order.meeting, order.rank.count * order.rank.num_stages)
        self._collectives = Collectives(order.rank, store, on_gpu=self._device.is_asynchronous)
        dtype_of = partial(resolve_dtype, order.config.dtype, device=self._device)
        with loading_weights():
            self._model = LoadedModel(order.config, order.source, self._device, dtype_of, self._collectives)
        self._runner: ModelRunner | None = None
        self._mover: Mover | None = None
        self._peak: PeakMeter | None = None
        connection.send(None)

    def run(self) -> None:
        """Until the connection is closed (EOFError)."""
        answered: dict[type, Callable[[Any], object]] = {
            Carve: self._carve,
            MakePool: self._make_pool,
            MakeMover: self._make_mover,
            Measured: self._end_measuring,
        }
        done: dict[type, Callable[[Any], object]] = {
            StepIndices: self._step,
            Move: self._move,
            HeadOfRows: self._apply_head,
            Touch: self._touch,
            CaptureGraphs: self._capture_graphs,
            DropPool: lambda _: self._own.drop_pool(),
        }
        while True:
            message = self._connection.recv()
            work = done.get(type(message))
            if work is not None:
                work(message)
                continue
            try:
                self._connection.send(answered[type(message)](message))
            except EngineError as problem:
                self._connection.send(Refusal.of(problem))

    @property
    def _own(self) -> ModelRunner:
        assert self._runner is not None, "Carve comes first"
        return self._runner

    # ---- memory

    def _carve(self, message: Carve) -> Needs:
        if self._mover is not None:
            self._mover.close()
        self._runner = self._mover = None  # before the new one is made: there may be no room for both
        config, model = message.config, self._model
        model.release_workspace()
        self._device.release_unused()
        held = held_beside(self._device, model.weight_bytes)
        max_model_len = resolve_max_model_len(config, model.config)
        layout = kv_layout(config, model.config, model.dtype, max_model_len)
        self._runner = FollowingRunner(model, config, self._device, layout, max_model_len)
        overhead = max(self._device.overhead_bytes, held)
        workspace_bytes, total = self._runner.workspace.num_bytes, self._device.total_bytes
        return Needs(model.weight_bytes, workspace_bytes, overhead, layout.block_bytes, total)

    def _make_pool(self, message: MakePool) -> None:
        self._own.carve_pool(message.num_blocks, message.kv_dtype)

    def _capture_graphs(self, message: CaptureGraphs) -> None:
        assert message.sizes == self._own.graph_sizes, "ranks that capture other steps would wait for each other"
        self._connection.send(self._own.capture_graphs().num_bytes)

    def _make_mover(self, message: MakeMover) -> None:
        self._mover = self._own.make_mover(message.num_host_slots, None)

    def _touch(self, message: Touch) -> None:
        self._own.touch(message.num_blocks)
        self._peak = self._device.peak()
        self._peak.__enter__()

    def _end_measuring(self, message: Measured) -> int:
        assert self._peak is not None, "Touch comes first"
        self._peak.__exit__(None, None, None)
        graphs = self._own.graphs
        known_bytes = message.tensor_bytes + (0 if graphs is None else graphs.num_bytes)
        return max(self._peak.bytes_above_start, self._device.used_bytes() - known_bytes)

    # ---- steps

    def _step(self, indices: StepIndices) -> None:
        with allocating("runtime"):
            batch = self._own.rebuild(indices)
            if self._device.is_asynchronous:
                self._collectives.send_to_all(batch.token_ids)
            self._own.forward(batch)

    def _move(self, message: Move) -> None:
        assert self._mover is not None, "MakeMover comes first"
        self._mover.run(message.transfers)

    def _apply_head(self, message: HeadOfRows) -> None:
        self._own.logits_of_rows(message.first, message.last)


def open_rank_device(config: EngineConfig, rank: Rank) -> Device:
    """The rank's own device: a GPU each, or a share of the machine's memory, which the first rank has checked."""
    if config.device == "cuda":
        torch.cuda.set_device(rank.number)
        return open_cuda(config.device_memory)
    assert config.device_memory is not None, "the first rank says how much it has"
    return CpuDevice(config.device_memory)

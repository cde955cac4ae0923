"""Runs the model: the tensors of one memory layout (workspace, KV pool), and a step over them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from kvplan_engine.blocks.layout import KvLayout
from kvplan_engine.config import EngineConfig
from kvplan_engine.device.allocation import allocating
from kvplan_engine.device.device import Device
from kvplan_engine.execution.choosing import DeviceDraws, TokenChooser
from kvplan_engine.execution.drafting import DraftRunner, MultiTokenRunner, drafter_of
from kvplan_engine.execution.graphs import PaddedBatches, StepGraphs, captured_sizes
from kvplan_engine.execution.inputs.adapter_rows import StagedRows, begin_step
from kvplan_engine.execution.inputs.batch import BatchBuilder
from kvplan_engine.execution.inputs.group_tables import state_tables_name
from kvplan_engine.execution.inputs.staging import InputStage
from kvplan_engine.execution.inputs.step_inputs import SAMPLED_ROWS, StepIndices, sampled_buffers
from kvplan_engine.layers.rope import fill_rope_table
from kvplan_engine.memory.breakdown import BufferSpec, rope_tables
from kvplan_engine.memory.step_buffers import LORA_ROWS, draft_buffers, step_buffers, step_index_buffers
from kvplan_engine.memory.workspace import HostPool, Workspace, allocate_kv_pool
from kvplan_engine.models.decoder import Decoder
from kvplan_engine.models.kv_pool import KvPool, places_of
from kvplan_engine.models.step_batch import GraphSize, StepBatch
from kvplan_engine.offload.disk_tier import DiskTier
from kvplan_engine.offload.mover import BlockMover, Mover
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.sampling.sampler import SampledTokens, Sampler
from kvplan_engine.sampling.token_logprobs import take_prompt_logprobs
from kvplan_engine.transformers_backend.model import RunnableModel, TransformersDecoder


def workspace_buffers(
    model: RunnableModel, config: EngineConfig, layout: KvLayout, max_model_len: int
) -> list[BufferSpec]:
    """What the largest step of ``config`` writes to."""
    buffers = step_buffers(
        *(model.config, model.dtype, config, layout, max_model_len),
        is_native=model.implementation == "native",
        of_kernels=model.kernel_buffers(config),
    )
    drafter = drafter_of(model, config)
    if drafter is not None:
        buffers += draft_buffers(drafter.config, drafter.dtype, config, layout, max_model_len)
    return buffers


class ModelRunner:
    """One division of the device's memory into workspace and KV pool, and the steps that run over it."""

    def __init__(
        self, model: RunnableModel, config: EngineConfig, device: Device, layout: KvLayout, max_model_len: int
    ) -> None:
        self._model = model
        self._config = config
        self._layout = layout
        self.device = device
        self.workspace = Workspace(workspace_buffers(model, config, layout, max_model_len), device.torch_device)
        model.use_workspace(self.workspace)
        model.overlap_launches(config.enable_pdl)
        self._adapter_rows = self._place_adapter_rows(config)
        self._fill_tables()
        self.sampler = Sampler(self.workspace["sampler"], model.config.vocab_size, model.ops, engine_seed=config.seed)
        self.chooser = TokenChooser(device, model.ops, self.sampler, self._place_draws(config), config.max_num_seqs)
        self._places = places_of(layout, model.config)
        names = [spec.name for spec in step_index_buffers(config, layout, max_model_len)]
        self._stage = self._make_stage(names)
        drafter = drafter_of(model, config)
        self._drafts: DraftRunner | None = None
        if drafter is not None:
            kind = DraftRunner if drafter.config.joined is None else MultiTokenRunner
            self._drafts = kind(drafter, self.workspace, layout, names, model.config.num_layers)
        self._batches = BatchBuilder(
            *(self.workspace, layout, names, self._places, self._stage),
            keeps_rows=self._drafts is not None and self._drafts.reads_hidden,
        )
        self.kv: KvPool | None = None
        self.graphs: StepGraphs | None = None

    @property
    def decoder(self) -> Decoder | TransformersDecoder:
        """What runs the layers of a step."""
        return self._model.decoder

    def _make_stage(self, names: Sequence[str]) -> InputStage | None:
        """How the index buffers ``names`` get to the device; None where the host writes to them itself."""
        if not self.device.is_asynchronous:
            return None
        targets = {name: self.workspace[name] for name in names}
        num_rows = max(self._config.max_num_seqs, self._config.most_sampled_rows)
        targets |= sampled_buffers(num_rows, self.device.torch_device)
        return InputStage(self.device, self._model.ops, targets, self.chooser.tokens.chosen)

    def _fill_tables(self) -> None:
        for name, rope in rope_tables(self._model.config).items():
            if name in self.workspace:
                fill_rope_table(self.workspace[name], rope)

    def _place_adapter_rows(self, config: EngineConfig) -> StagedRows | None:
        """Where steps that may be captured look for the rows that adapters correct."""
        if self._model.adapters is None or LORA_ROWS not in self.workspace:
            return None
        staged = self._model.adapters.step.place = StagedRows(
            self.device, self._model.ops, self.workspace, config.max_loras
        )
        return staged

    def _place_draws(self, config: EngineConfig) -> DeviceDraws | None:
        """What chooses tokens on the device; None where only the sampler does.

        It does with speculation: the kernel counts every token that it chooses, accepted or not.
        """
        if self._model.draws is None or config.speculative_config is not None:
            return None
        return DeviceDraws(self._model.draws, self.device, self.workspace, self._model.config.vocab_size, config.seed)

    def touch(self, num_blocks: int) -> None:
        """Write to the workspace and ``num_blocks`` blocks, so that physical memory backs them before a measurement."""
        assert self.kv is not None
        self.workspace.touch()
        self._fill_tables()
        if self._drafts is not None:
            self._drafts.fill_tables()
        if self._adapter_rows is not None:
            self._adapter_rows.reset()
        self.chooser.clear()
        self.kv.planes[:, :num_blocks].zero_()

    def carve_pool(self, num_blocks: int, kv_dtype: str) -> None:
        """Allocate the pool of ``num_blocks`` blocks."""
        num_planes = 1 if self.device.is_asynchronous else self._layout.num_planes
        planes = allocate_kv_pool(num_blocks, self._layout.block_bytes, self.device.torch_device, num_planes)
        dtypes = (getattr(torch, name) for name in (kv_dtype, self._model.dtype))
        self.kv = KvPool(planes, self._layout, self._model.config, *dtypes)
        if self._drafts is not None:
            self._drafts.use_pool(self.kv)

    def drop_pool(self) -> None:
        """Free the pool, and the graphs with it, which hold its address."""
        self.graphs = None
        self.kv = None
        if self._drafts is not None:
            self._drafts.drop_pool()

    def make_mover(self, num_host_slots: int, disk: DiskTier | None) -> Mover:
        """See StepRunner.make_mover. OutOfDeviceMemory(phase="kv_host") when the slots cannot be allocated."""
        assert self.kv is not None
        planes, block_bytes = self.kv.planes, self._layout.block_bytes
        pool = HostPool(num_host_slots, block_bytes, is_pinned=planes.is_cuda) if num_host_slots else None
        return BlockMover(self._model.ops, self.device, planes, pool, disk)

    # ---- one step

    def prepare(self, plan: StepPlan, latest: np.ndarray | None = None, before: StepPlan | None = None) -> StepBatch:
        """The step's inputs: see BatchBuilder.build. before: the plan whose tokens are still pending, if any."""
        if self._drafts is not None:
            self._drafts.fill(plan)
        pending = None if before is None else self.chooser.tokens.pending(plan, before)
        graph = self._graph_of(plan) if self.chooser.prepare(plan) else None
        batch = self._batches.build(plan, latest, pending=pending, graph=graph)
        if self._model.adapters is not None:
            begin_step(self._model.adapters, plan)
        return batch

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """Logits [len(batch.sampled), vocab_size] of one step; its K and V are in the pool afterwards."""
        assert self.kv is not None
        self.chooser.follow(batch)
        if batch.graph is None:
            return self._model.decoder.forward(batch, self.kv, self.workspace)
        assert self.graphs is not None
        self.graphs.replay(batch.graph)
        return self.workspace["logits"][: batch.sampled_rows.shape[0]]

    def follow(self, plan: StepPlan, sampled: SampledTokens) -> None:
        """See StepRunner.follow."""
        if self._drafts is not None:
            self._drafts.follow(plan, sampled, self.workspace["normed"])

    @property
    def first_drafts(self) -> dict[int, int]:
        """See StepRunner.first_drafts."""
        return {} if self._drafts is None else self._drafts.first_drafts

    def take_prompt_logprobs(self, plan: StepPlan) -> None:
        """See StepRunner.take_prompt_logprobs."""
        take_prompt_logprobs(plan, self.logits_of_rows, self.sampler)

    def logits_of_rows(self, first: int, last: int) -> torch.Tensor:
        """Logits of these rows of the last step, see Decoder.logits_of_rows."""
        return self._model.decoder.logits_of_rows(self.workspace, first, last)

    # ---- for other ranks

    def indices_of(self, batch: StepBatch) -> StepIndices:
        """See BatchBuilder.indices_of."""
        return self._batches.indices_of(batch)

    def rebuild(self, indices: StepIndices) -> StepBatch:
        """See BatchBuilder.rebuild."""
        return self._batches.rebuild(indices)

    # ---- graphs

    @property
    def graph_sizes(self) -> tuple[GraphSize, ...]:
        """The steps that are captured: none without a GPU, if enforce_eager, or if the model is not."""
        if not self.device.is_asynchronous or not self._model.is_capturable or self._config.enforce_eager:
            return ()
        if self._model.adapters is not None and self._adapter_rows is None:
            return ()  # a graph would correct the same rows always
        with_prompts = self._config.cudagraph_mode == "full"
        num_tokens = self._config.max_num_batched_tokens
        num_seqs = min(self._config.max_num_seqs, num_tokens)
        return captured_sizes(num_seqs, num_tokens, with_prompts=with_prompts)

    @property
    def num_graph_replays(self) -> int:
        """Steps that ran as the replay of a graph."""
        return self.graphs.num_replays if self.graphs is not None else 0

    def capture_graphs(self) -> StepGraphs:
        """Capture the step at every size; OutOfDeviceMemory(phase="graph_capture")."""
        assert self.kv is not None and self._stage is not None
        sizes = self.graph_sizes
        self.chooser.clear()  # of the step that was measured
        with allocating("graph_capture"):
            self._model.reserve_decode(self.kv, max(size.num_seqs for size in sizes))
            rows = self._stage.targets[SAMPLED_ROWS]
            padded = PaddedBatches(self.workspace, self._places, rows, state_tables_name(self._layout))
            graphs = StepGraphs(self.device, padded, sizes)
            graphs.capture(self._step)
        self.graphs = graphs
        return graphs

    def _step(self, batch: StepBatch) -> None:
        """What is captured: the step and the choice of each row's token."""
        assert self.kv is not None
        with self._corrections_of_graph(batch.num_tokens):
            logits = self._model.decoder.forward(batch, self.kv, self.workspace)
        self.choose_in_graph(logits, batch)

    def choose_in_graph(self, logits: torch.Tensor, batch: StepBatch) -> None:
        """What follows the step in its graph."""
        self.chooser.choose_in_graph(logits, batch)

    def _corrections_of_graph(self, num_rows: int) -> AbstractContextManager[None]:
        if self._adapter_rows is None or self._model.adapters is None:
            return nullcontext()
        return self._model.adapters.step.using(self._adapter_rows.of_graph(num_rows))

    def _graph_of(self, plan: StepPlan) -> GraphSize | None:
        """The captured step for ``plan``; None where there is none."""
        if self.graphs is None or plan.num_draft_tokens:
            return None
        num_tokens, num_seqs = plan.num_tokens, plan.num_seqs
        has_prompts = num_tokens != num_seqs or not all(item.needs_sampling for item in plan.chunks)
        return self.graphs.size_for(num_tokens, num_seqs, has_prompts=has_prompts)

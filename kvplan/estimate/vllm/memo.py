"""What predictions of one model share, whatever the GPU: a search tries many."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvplan.catalog.spec import LayerSpec, ModelSpec
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.vllm.division import check_division
from kvplan.estimate.vllm.groups import BlockPlan
from kvplan.estimate.vllm.weights import StoredFormats, stored_formats


@dataclass(frozen=True, slots=True)
class RankParts:
    """A rank's weights and blocks, which differ between GPUs only in the padding of their kernels.

    ``cached``: its layers, the drafter's behind the model's; ``layer_kinds``: one of each kind.
    ``buffer_bytes_per_token``: what the former hold for each token of a step's budget. ``free_pieces``: bytes of each
    piece that loading leaves free in segments of PyTorch's that are in use.
    """

    cached: tuple[LayerSpec, ...]
    layer_kinds: tuple[LayerSpec, ...]
    weight_bytes: int
    blocks: BlockPlan
    buffer_bytes_per_token: int
    free_pieces: tuple[int, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.cached)


@dataclass(frozen=True, slots=True)
class ModelMemo:
    """What is known of one model. It holds the model itself, so that no other one can take its place in memory.

    ``drafted``: the model with its own layers as drafter, by the tokens they propose; ``divided``: layouts that divide
    it; ``parts``: ranks, by everything but the GPU that decides them.
    """

    spec: ModelSpec
    formats: dict[str, StoredFormats] = field(default_factory=dict)
    drafted: dict[int, ModelSpec] = field(default_factory=dict)
    divided: set[ParallelLayout] = field(default_factory=set)
    parts: dict[tuple[object, ...], RankParts] = field(default_factory=dict)

    def stored_formats(self, requested: str) -> StoredFormats:
        """How the tensors are stored where ``requested`` is asked for."""
        if requested not in self.formats:
            self.formats[requested] = stored_formats(self.spec, requested)
        return self.formats[requested]

    def check_division(self, layout: ParallelLayout) -> None:
        """UsageError where ``layout`` cannot divide the model."""
        if layout not in self.divided:
            check_division(self.spec, layout)
            self.divided.add(layout)


Memo = dict[int, ModelMemo]
"""By the address of the model, which its entry keeps alive: comparing whole models would take longer than they save."""


def memo_of(memo: Memo, spec: ModelSpec) -> ModelMemo:
    """The entry of ``spec``, a new one at first."""
    if id(spec) not in memo:
        memo[id(spec)] = ModelMemo(spec)
    return memo[id(spec)]

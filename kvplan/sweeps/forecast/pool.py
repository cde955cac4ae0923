"""What a sweep needs to know of an engine's predicted memory, whichever engine it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvplan.estimate.kv_groups import KvGroup
from kvplan.estimate.speed.simulation.interface import UNIFORM
from kvplan.runs.trials import TrialSettings
from kvplan.workload.requests import RequestSpec


class TokenLayout(Protocol):
    """How tokens lie in blocks. bytes_per_token: over all layers, of one more token."""

    @property
    def groups(self) -> tuple[KvGroup, ...]: ...

    @property
    def bytes_per_token(self) -> float: ...


class PoolPrediction(Protocol):
    """Bytes of one device. fixed_bytes: everything beside the pool. largest_context: of a sequence that fits, or 0.

    outcome: ok, rejected_ctx, rejected_seqs, rejected_block_size, oom_weights or oom_kv_init. kv_cache_tokens: as the
    engine itself counts them.
    """

    @property
    def weight_bytes(self) -> int: ...

    @property
    def fixed_bytes(self) -> int: ...

    @property
    def block_bytes(self) -> int: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def kv_cache_tokens(self) -> int: ...

    @property
    def largest_context(self) -> int: ...

    @property
    def outcome(self) -> str: ...

    @property
    def layout(self) -> TokenLayout: ...


@dataclass(frozen=True, slots=True)
class PlainLayout:
    """Every layer keeps every token."""

    bytes_per_token: float
    groups: tuple[KvGroup, ...] = UNIFORM


@dataclass(frozen=True, slots=True)
class PlainPool:
    """The predicted pool of an engine that is not kvplan's own.

    dtype: of weights and activations as the engine resolves it. usable_blocks: those of block_size tokens that requests
    can hold at once, for the simulation: without one that the engine keeps for itself.
    """

    outcome: str
    dtype: str
    weight_bytes: int
    fixed_bytes: int
    block_bytes: int
    num_blocks: int
    usable_blocks: int
    kv_cache_tokens: int
    largest_context: int
    layout: PlainLayout


class EngineModel(Protocol):
    """One model on one device, served by an engine that is not kvplan's own: what is planned and expected of it."""

    def memory(self, settings: TrialSettings) -> PlainPool:
        """What a start should hold, or how it should fail. KvplanError for what cannot be sized."""

    def base_settings(self, requests: Sequence[RequestSpec], max_concurrency: int | None) -> TrialSettings:
        """What is taken for axes that were not given: room for these requests at once, as far as the device has it."""

    def default_axes(self, base: TrialSettings) -> Mapping[str, Sequence[float | int | str]]:
        """The axes of a sweep that names none."""

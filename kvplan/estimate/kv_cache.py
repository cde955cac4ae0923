"""What one sequence keeps in memory, on one rank: bytes per token, fixed bytes, and the formula of each part.

Every layer is turned into cache entries (K and V, a latent vector, an indexer's keys, a state, an encoder's K and V);
equal entries of different layers are one component.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

from kvplan.catalog.spec import (
    LayerSpec,
    ModelSpec,
)
from kvplan.errors import UsageError
from kvplan.estimate.cache_entries import CacheEntry, CacheSettings, EntryKind, layer_entries


@dataclass(frozen=True, slots=True)
class KvComponent:
    """``num_layers`` layers with the same entry.

    ``bytes_per_token``: what one more token costs beyond every window (0 for windows and states);
    ``window_bytes_per_token``: what it costs inside the window; ``fixed_bytes``: windows at their cap and states.
    """

    entry: CacheEntry
    num_layers: int

    @property
    def kind(self) -> EntryKind:
        return self.entry.kind

    @property
    def bytes_per_token(self) -> int:
        if self.entry.window_tokens is not None:
            return 0
        return -(-self.num_layers * self.entry.token_bytes // self.entry.tokens_per_row)

    @property
    def window_bytes_per_token(self) -> int:
        return self.num_layers * self.entry.token_bytes if self.entry.window_tokens is not None else 0

    @property
    def fixed_bytes(self) -> int:
        capped = (self.entry.window_tokens or 0) * self.entry.token_bytes
        return self.num_layers * (capped + self.entry.state_bytes)

    @property
    def formula(self) -> str:
        return f"{self.num_layers} layers x {self.entry.formula}"

    def logical_bytes(self, context_tokens: int) -> int:
        return self.num_layers * self.entry.kept_bytes(context_tokens)


def components_of(layers: Iterable[LayerSpec], settings: CacheSettings) -> tuple[KvComponent, ...]:
    """The entries of ``layers`` on one rank, equal ones counted together, in order of appearance."""
    counts: dict[CacheEntry, int] = {}
    known: dict[int, tuple[CacheEntry, ...]] = {}
    for layer in layers:
        if id(layer) not in known:
            known[id(layer)] = layer_entries(layer, settings)
        for entry in known[id(layer)]:
            counts[entry] = counts.get(entry, 0) + 1
    return tuple(KvComponent(entry, count) for entry, count in counts.items())


def pipeline_slices(num_layers: int, pipeline_parallel_size: int, partition: str | None = None) -> tuple[range, ...]:
    """Which layers each pipeline stage holds: even, and what is left over goes to the stages before the last one.

    As vLLM divides (vllm/distributed/utils.py, get_pp_indices): the last stage has the head, so it gets none extra.
    partition: the layers of each stage, as in its VLLM_PP_LAYER_PARTITION ("20,22,22").
    """
    if pipeline_parallel_size > num_layers:
        raise UsageError(
            f"{num_layers} layers cannot be divided over {pipeline_parallel_size} pipeline stages.",
            hint=f"choose a --pipeline-parallel-size of at most {num_layers}",
        )
    sizes = _even_sizes(num_layers, pipeline_parallel_size)
    if partition is not None:
        sizes = _given_sizes(partition, num_layers, pipeline_parallel_size)
    ends = list(accumulate(sizes))
    return tuple(range(end - size, end) for size, end in zip(sizes, ends, strict=True))


def _even_sizes(num_layers: int, stages: int) -> list[int]:
    each, left = divmod(num_layers, stages)
    sizes = [each] * stages
    for index in range(2, left + 2):
        sizes[-index] += 1
    return sizes


def _given_sizes(partition: str, num_layers: int, stages: int) -> list[int]:
    words = [word.strip() for word in partition.split(",")]
    sizes = [int(word) for word in words if word.isdecimal() and len(word) < 7]
    if len(sizes) != len(words) or 0 in sizes or len(sizes) != stages or sum(sizes) != num_layers:
        raise UsageError(
            f"--pp-layer-partition '{partition}' does not divide {num_layers} layers over {stages} pipeline stages.",
            hint="for example " + ",".join(map(str, _even_sizes(num_layers, stages))),
        )
    return sizes


@dataclass(frozen=True, slots=True)
class KvCacheSize:
    """One sequence of ``context_tokens`` on one rank holding all layers."""

    context_tokens: int
    components: tuple[KvComponent, ...]

    @property
    def bytes_per_token(self) -> int:
        """What one more token costs once every window is full."""
        return sum(component.bytes_per_token for component in self.components)

    @property
    def window_bytes_per_token(self) -> int:
        """What one more token costs on top of that while it is inside every window."""
        return sum(component.window_bytes_per_token for component in self.components)

    @property
    def fixed_bytes_per_sequence(self) -> int:
        return sum(component.fixed_bytes for component in self.components)

    @property
    def next_token_bytes(self) -> int:
        """What one more token costs at ``context_tokens``: in windows that are not full yet, too."""
        windows = (each for each in self.components if (each.entry.window_tokens or 0) > self.context_tokens)
        return self.bytes_per_token + sum(each.window_bytes_per_token for each in windows)

    @property
    def logical_bytes(self) -> int:
        return sum(component.logical_bytes(self.context_tokens) for component in self.components)


def size_sequence(spec: ModelSpec, context_tokens: int, settings: CacheSettings) -> KvCacheSize:
    """The KV cache of one sequence of ``context_tokens`` tokens. UsageError where the ranks cannot divide it.

    A window that no sequence of the model fills (Phi-3.5: 262,144 of 131,072 positions) is full attention.
    """
    components = components_of(spec.layers, settings)
    if spec.longest_context is not None:
        components = _without_idle_windows(components, max(spec.longest_context, context_tokens))
    return KvCacheSize(context_tokens, components)


def _without_idle_windows(components: tuple[KvComponent, ...], longest_tokens: int) -> tuple[KvComponent, ...]:
    """``components``, those whose window holds ``longest_tokens`` being full attention: each token is one more."""
    counts: dict[CacheEntry, int] = {}
    for component in components:
        entry, window = component.entry, component.entry.window_tokens
        if window is not None and window >= longest_tokens:
            formula = f"{entry.formula} (its window of {window:,} tokens never fills)"
            entry = replace(entry, kind="full", window_tokens=None, formula=formula)
        counts[entry] = counts.get(entry, 0) + component.num_layers
    return tuple(KvComponent(entry, count) for entry, count in counts.items())

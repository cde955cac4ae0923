"""How many more sequences of a length fit now: the server's free blocks, divided by what the plan says one takes.

The pool and its use are the server's own figures. How many blocks a sequence takes is the plan's: vLLM gives a model
with windows or states several groups of blocks, so tokens divided by length would be wrong there. A model that the
catalog does not know is counted in tokens, and the basis says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from kvplan.catalog.models import find_profile, resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.dtypes import BYTES_PER_ELEMENT, cache_dtype, serving_dtype
from kvplan.estimate.sequence_pages import vllm_pages
from kvplan.metrics.limits import ServerLimits
from kvplan.metrics.reading import ServerReading

_NULL_BLOCKS: Final = {"vllm": 1}
"""Blocks of a pool that no sequence ever gets; vLLM's usage leaves them out too (v1/core/block_pool.py, get_usage)."""


@dataclass(frozen=True, slots=True)
class Room:
    """Room for more sequences of ``context_tokens``. by_kv: that the free part of the pool holds; by_seats: free places
    in the engine's steps, None where it does not tell. capacity: of the whole pool. blocks_per_sequence: None where the
    engine counts tokens or slots. basis: where the blocks of a sequence come from.
    """

    context_tokens: int
    by_kv: int
    by_seats: int | None
    capacity: int
    blocks_per_sequence: int | None
    basis: str

    @property
    def sequences(self) -> int:
        return self.by_kv if self.by_seats is None else min(self.by_kv, self.by_seats)

    @property
    def is_limited_by_seats(self) -> bool:
        return self.by_seats is not None and self.by_seats < self.by_kv

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "sequences": self.sequences}


def room_for(context_tokens: int, reading: ServerReading, limits: ServerLimits, spec: ModelSpec | None) -> Room | None:
    """None where the server does not tell how large or how full its pool is."""
    seats = seats_of(reading, limits)
    by_seats = None if seats is None or reading.num_running is None else max(0, seats - int(reading.num_running))
    sized = _blocks_per_sequence(context_tokens, reading, spec)
    if sized is not None and reading.cache.num_blocks and reading.kv_cache_usage is not None:
        blocks, basis = sized
        engines = max(1, reading.num_engines)
        usable = reading.cache.num_blocks / engines - _NULL_BLOCKS.get(reading.engine, 0)
        free = usable * (1 - reading.kv_cache_usage)
        # A sequence lies in one data-parallel engine. Half a block more: the product is whole but for its rounding.
        by_kv = engines * int((free + 0.5) // blocks)
        return Room(context_tokens, by_kv, by_seats, engines * int(usable // blocks), blocks, basis)
    return _by_slots(context_tokens, reading) or _by_tokens(context_tokens, reading, by_seats)


def seats_of(reading: ServerReading, limits: ServerLimits) -> int | None:
    """Sequences that may run at once, of all data-parallel engines together: settings are those of each."""
    if reading.max_num_seqs:
        return reading.max_num_seqs
    return None if limits.max_num_seqs is None else limits.max_num_seqs * max(1, reading.num_engines)


def _by_slots(context_tokens: int, reading: ServerReading) -> Room | None:
    """llama.cpp: a free slot for each sequence that is short enough. At most that, because slots may share a pool."""
    if reading.num_slots is None or reading.slot_tokens is None or reading.num_running is None:
        return None
    capacity = reading.num_slots if context_tokens <= reading.slot_tokens else 0
    return Room(context_tokens, max(0, capacity - int(reading.num_running)), None, capacity, None, "slots")


def _by_tokens(context_tokens: int, reading: ServerReading, by_seats: int | None) -> Room | None:
    total = reading.cache.kv_cache_size_tokens
    used = reading.kv_cache_used_tokens
    if used is None and total is not None and reading.kv_cache_usage is not None:
        used = total * reading.kv_cache_usage
    if total is None or used is None:
        return None
    engines, page = max(1, reading.num_engines), reading.cache.block_size or 1
    each = -(-context_tokens // page) * page
    by_kv = engines * int((total - used) / engines // each)
    return Room(context_tokens, max(0, by_kv), by_seats, engines * int(total / engines // each), None, "tokens")


def _blocks_per_sequence(context_tokens: int, reading: ServerReading, spec: ModelSpec | None) -> tuple[int, str] | None:
    """Blocks, and where the number comes from; None where it is not known."""
    size = reading.cache.block_size
    if not size:
        return None
    if reading.engine == "kvplan":  # every layer lies in one block
        return -(-context_tokens // size), "blocks"
    if reading.engine != "vllm" or spec is None:
        return None
    dtype = serving_dtype(spec.dtype)
    kv_dtype = cache_dtype(dtype, reading.cache.cache_dtype or "auto")
    if kv_dtype not in BYTES_PER_ELEMENT:
        return None
    settings = CacheSettings(model_dtype=dtype, kv_dtype=kv_dtype)
    try:
        pages = vllm_pages(spec, settings, context_tokens=context_tokens, block_size=size, in_flight_tokens=1)
    except KvplanError:
        return None
    return pages.paged_blocks, f"plan of {spec.served_id}"


def known_model(names: Iterable[str]) -> ModelSpec | None:
    """The first of a server's model names that is known without asking the hub: a shipped profile or a local path."""
    return next((spec for spec in map(_known, names) if spec is not None), None)


@lru_cache
def _known(name: str) -> ModelSpec | None:
    try:
        if find_profile(name) is None and not Path(name).is_dir():
            return None
        return resolve_model(name)
    except (KvplanError, OSError):
        return None

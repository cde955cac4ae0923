"""What llama-server prints when it starts: contexts, cells and buffers.

The words are those of b11434 with ``--log-verbosity 4``; of earlier releases those lines that kept their form (the KV
cache's total was ``KV self size`` until May 2025).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kvplan.units import MIB

_CONTEXT: Final = "n_seq_max"
_CELLS: Final = re.compile(
    r"size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers, +(\d+)(?:/ *(\d+))? seqs\), K \((\w+)\)"
)
_KV_SELF_SIZE: Final = re.compile(r"KV self size += +([\d.]+) MiB")
_BUFFERS: Final = re.compile(r" (model|output|compute) buffer size = +([\d.]+) MiB")
_SLOTS: Final = re.compile(r"n_slots = (\d+)(?:, n_ctx_slot = (\d+))?")
_NUMBERS: Final = {
    "batch_tokens": re.compile(r"n_batch +=? +(\d+)"),
    "context_tokens": re.compile(r"\bn_ctx +=? +(\d+)"),
}


@dataclass(frozen=True, slots=True)
class CellsLine:
    """One KV cache, as printed: of the layers with all tokens, or of those with a window.

    num_streams: parts of ``num_cells`` cells each, for one slot or for all. size_bytes: rounded by 0.01 MiB.
    """

    size_bytes: int
    num_cells: int
    num_layers: int
    num_streams: int
    key_type: str


@dataclass(frozen=True, slots=True)
class StartLog:
    """A start. None, or no caches: not printed (a lower verbosity). Bytes are rounded by 0.01 MiB."""

    caches: tuple[CellsLine, ...]
    num_slots: int | None
    slot_tokens: int | None
    context_tokens: int | None
    batch_tokens: int | None
    weight_bytes: int | None
    output_bytes: int | None
    compute_bytes: int | None
    kv_self_bytes: int | None

    @property
    def kv_cache_tokens(self) -> int | None:
        """Cells of all slots in layers that keep every token, which are those printed first."""
        if self.caches:
            return self.caches[0].num_cells * self.caches[0].num_streams
        return self.context_tokens

    @property
    def kv_pool_bytes(self) -> int | None:
        return sum(cache.size_bytes for cache in self.caches) or self.kv_self_bytes


def read_start(log: str) -> StartLog:
    """The last start in a log: with ``--fit`` it may lay out contexts before the one that it keeps."""
    lines = log.splitlines()
    begin = max((number for number, line in enumerate(lines) if _CONTEXT in line), default=0)
    text = "\n".join(lines[begin:])
    slots = _SLOTS.search(text)
    return StartLog(
        caches=tuple(_cells(found) for found in _CELLS.finditer(text)),
        num_slots=int(slots[1]) if slots else None,
        slot_tokens=int(slots[2]) if slots and slots[2] else None,
        context_tokens=_first(_NUMBERS["context_tokens"], text),
        batch_tokens=_first(_NUMBERS["batch_tokens"], text),
        weight_bytes=_buffers(log, "model"),
        output_bytes=_buffers(text, "output"),
        compute_bytes=_buffers(text, "compute"),
        kv_self_bytes=_mebibytes(found[1]) if (found := _KV_SELF_SIZE.search(text)) else None,
    )


def _cells(found: re.Match[str]) -> CellsLine:
    size, cells, layers, sequences, streams, key_type = found.groups()
    # Releases before streams had one pool, and printed only how many sequences may share it.
    return CellsLine(_mebibytes(size), int(cells), int(layers), int(streams) if streams and sequences else 1, key_type)


def _buffers(text: str, kind: str) -> int | None:
    """The sum over devices; weights that were repacked stand there beside the mapped file."""
    sizes = [_mebibytes(size) for each, size in _BUFFERS.findall(text) if each == kind]
    return sum(sizes) if sizes else None


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found[1]) if found else None


def _mebibytes(text: str) -> int:
    return round(float(text) * MIB)

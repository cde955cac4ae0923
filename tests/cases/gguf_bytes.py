"""GGUF headers byte by byte, as no writer would make them."""

from __future__ import annotations

import struct


def header(*entries: bytes, tensors: tuple[bytes, ...] = ()) -> bytes:
    """A header of these entries and tensors, each as it is stored."""
    counts = struct.pack("<IQQ", 3, len(tensors), len(entries))
    return b"GGUF" + counts + b"".join(entries) + b"".join(tensors)


def text(words: str) -> bytes:
    """A string with its length before it."""
    return struct.pack("<Q", len(words)) + words.encode()


def tensor(name: str, *shape: int, kind: int = 0, offset: int = 0) -> bytes:
    """An entry of the table of tensors."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)

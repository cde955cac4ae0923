"""How much there is to decode in a body, before it is decoded: that keeps the event loop, whatever is in it.

A text costs next to nothing, however long it is. A number costs 0.1 us, a list or an object up to ten times as much.
"""

from __future__ import annotations

from collections.abc import Iterator

MOST_VALUES = 1 << 19
MOST_CONTAINERS = 1 << 16
_SLICE_BYTES = 1 << 18  # what is looked at before another thread may go on


def is_decoded_soon(body: bytes, most_values: int = MOST_VALUES) -> bool:
    """Whether ``body`` has at most ``most_values`` values, of which at most MOST_CONTAINERS are lists or objects."""
    return _is_small(_slices(body), most_values) or _is_small(_outside_texts(body), most_values)


def _slices(body: bytes) -> Iterator[bytes]:
    return (body[start : start + _SLICE_BYTES] for start in range(0, len(body), _SLICE_BYTES))


def _outside_texts(body: bytes) -> Iterator[bytes]:
    """What stands outside of the texts in ``body``, in pieces."""
    is_in_text = False
    start = 0
    while start < len(body):
        piece = body[start : start + _SLICE_BYTES]
        num_backslashes = len(piece) - len(piece.rstrip(b"\\"))
        if num_backslashes % 2:  # what the last one escapes belongs to it
            piece += body[start + len(piece) : start + len(piece) + 1]
        start += len(piece)
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')  # each quote begins or ends a text
        yield b"".join(parts[1 if is_in_text else 0 :: 2])
        if len(parts) % 2 == 0:
            is_in_text = not is_in_text


def _is_small(pieces: Iterator[bytes], most_values: int) -> bool:
    num_commas = num_containers = 0
    for piece in pieces:
        num_commas += piece.count(b",")
        num_containers += piece.count(b"[") + piece.count(b"{")
        if num_commas >= most_values or num_containers > MOST_CONTAINERS:
            return False
    return True

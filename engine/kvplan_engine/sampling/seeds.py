"""Where a sequence's random numbers come from: its request's seed, or else the engine's and the sequence's number."""

from __future__ import annotations

import hashlib
import struct

from kvplan_engine.requests.request import Sequence


def random_bits(sequence: Sequence, engine_seed: int, *place: int) -> int:
    """64 bits for ``place``: of one draw its position, and nothing where a generator counts positions itself."""
    seed = sequence.request.params.seed
    origin = ("request", seed, sequence.index) if seed is not None else ("engine", engine_seed, sequence.number)
    text = repr((*origin, *place)).encode()
    (number,) = struct.unpack("<Q", hashlib.blake2b(text, digest_size=8).digest())
    return int(number)

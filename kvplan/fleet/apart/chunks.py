"""What is left to be sent when a prompt has been read, where each of its chunks is sent while the next one is read.

Chunks of a long prompt fill the token budget, so a step reads one prompt, and one prompt at a time has the sender to
itself. What is sent then goes at the full speed of the link; the last chunk, and what the link did not carry in time,
is a transfer that shares it with others (``links``).
"""

from __future__ import annotations

from kvplan.fleet.apart.moved import MovedKv
from kvplan.fleet.replicas.setup import ReplicaSetup
from kvplan.fleet.requests import FleetRequest


def bytes_left(
    setup: ReplicaSetup, moved: MovedKv, request: FleetRequest, found_tokens: int, bytes_per_second: float
) -> float:
    """Return the bytes of ``request`` that are still to be sent when its last chunk has been read.

    found_tokens: what the prefill replica found in its cache; it is sent with the first chunk.
    """
    prompt, budget = request.num_prompt_tokens, setup.rules.max_num_batched_tokens
    left, sent_to, at = 0.0, 0, found_tokens
    while at < prompt:
        number = min(budget, prompt - at)
        pairs = number * (at + (number + 1) / 2)
        seconds = setup.clock.seconds(number, 1, int(at + number >= prompt), at + number, pairs)
        left = max(left - seconds * bytes_per_second, 0.0)
        at += number
        left += moved.num_bytes(at) - moved.num_bytes(sent_to)
        sent_to = at
    return left

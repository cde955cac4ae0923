"""How many bytes of KV a hand-over moves, by the block plan of the replica that receives them.

Whole blocks are moved, of every group of layers (0.32.0, vllm/distributed/kv_transfer/kv_connector/v1/nixl/
base_scheduler.py, get_exchange_clipped_blocks):

    full attention, latents    all blocks of the prompt
    sliding windows            the last ceil(window / block) + 1
    chunks                     those of the prompt's last chunk and the one that it begins in
    states, rings              those of one request

Each rank receives its own share: where there are more ranks than KV heads they hold the same heads and each reads them
(pull_worker.py), as all ranks do with latents. So a replica receives what a rank holds times its ranks.

``bytes_left``: where each chunk of a prompt is sent while the next one is read, less is left when it has been read.
Chunks of a long prompt fill the token budget, so a step reads one prompt, and one prompt at a time has the sender to
itself. What is sent then goes at the full speed of the link; the last chunk, and what the link did not carry in time,
is a transfer that shares it with others (``links``).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.estimate.vllm.groups import BlockPlan, PageGroup
from kvplan.estimate.vllm.pages import PER_REQUEST
from kvplan.fleet.replicas.setup import ReplicaSetup
from kvplan.fleet.requests import FleetRequest


@dataclass(frozen=True, slots=True)
class MovedKv:
    """plan: of one rank. num_ranks: those that hold a request's KV: tensor-parallel ranks times pipeline stages."""

    plan: BlockPlan
    num_ranks: int = 1

    def num_bytes(self, num_tokens: int, found_tokens: int = 0) -> int:
        """Return the bytes of a prompt of ``num_tokens``, whose first ``found_tokens`` the receiver has already."""
        if found_tokens >= num_tokens:
            return 0
        return self.num_ranks * sum(_group_bytes(group, num_tokens, found_tokens) for group in self.plan.groups)


def _group_bytes(group: PageGroup, num_tokens: int, found_tokens: int) -> int:
    page = group.page
    if page.kind in PER_REQUEST:
        return group.num_layers * page.page_bytes
    blocks = -(-num_tokens // page.block_size)
    missing = blocks - found_tokens // page.block_size
    if page.kind == "every_state":
        missing = 1
    if page.kind in ("sliding", "chunked") and page.window_tokens is not None:
        missing = min(missing, -(-page.window_tokens // page.block_size) + 1)
    return group.num_layers * missing * page.page_bytes


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

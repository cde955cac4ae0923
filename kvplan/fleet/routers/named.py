"""Routers by name, as ``--router`` takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from kvplan.errors import UsageError
from kvplan.fleet.routers.dynamo import KvRouter
from kvplan.fleet.routers.in_turn import DataParallelBalancer, LeastLoaded, RoundRobin
from kvplan.fleet.routers.interface import Router
from kvplan.fleet.routers.llm_d import LlmD, LlmDPrecise
from kvplan.fleet.routers.own import OwnRouter
from kvplan.fleet.routers.production_stack import PrefixAware
from kvplan.fleet.routers.sglang import CacheAware


class ReplicaSizes(NamedTuple):
    """What a router is set up with: tokens of a block, blocks of a pool, seats of a replica."""

    block_size: int
    num_blocks: int
    num_seats: int


class NamedRouter(NamedTuple):
    """make: a new one, which has seen nothing. title: for people. setting: how it is put before servers of vLLM; None
    where it stands before none of several machines, so that a plan does not choose it. counts_prompt_tokens: it
    publishes the prompt tokens that it sent to servers and that these have not read yet."""

    title: str
    make: Callable[[ReplicaSizes], Router]
    setting: str | None = None
    counts_prompt_tokens: bool = False


ROUTERS: Final[dict[str, NamedRouter]] = {
    "round-robin": NamedRouter("round robin", lambda _: RoundRobin(), "any balancer that takes turns"),
    "least-loaded": NamedRouter(
        "the least loaded replica", lambda _: LeastLoaded(), "a balancer that knows 4 x waiting + running of each"
    ),
    "vllm": NamedRouter("vLLM's data-parallel balancer", lambda _: DataParallelBalancer()),
    "llm-d": NamedRouter(
        "llm-d's picker with its own memory of prompts",
        lambda sizes: LlmD(sizes.block_size, sizes.num_blocks),
        "llm-d's inference scheduler with queue-scorer 2, kv-cache-utilization-scorer 2, prefix-cache-scorer 3",
        counts_prompt_tokens=True,
    ),
    "llm-d-precise": NamedRouter(
        "llm-d's picker with the engines' KV events",
        lambda _: LlmDPrecise(),
        "llm-d's inference scheduler with precise-prefix-cache-scorer 2, kv-cache-utilization-scorer 1, "
        "queue-scorer 1, and --kv-events-config of vLLM",
        counts_prompt_tokens=True,
    ),
    "sglang": NamedRouter(
        "SGLang's router, cache_aware", lambda _: CacheAware(), "SGLang's model gateway with --policy cache_aware"
    ),
    "dynamo": NamedRouter(
        "Dynamo's KV router",
        lambda sizes: KvRouter(sizes.block_size, sizes.num_blocks),
        "python -m dynamo.frontend --router-mode kv, and workers of dynamo.vllm",
    ),
    "production-stack": NamedRouter(
        "vLLM's production stack, prefixaware", lambda _: PrefixAware(), "vllm-router with --routing-logic prefixaware"
    ),
    "kvplan": NamedRouter(
        "kvplan's own router", lambda sizes: OwnRouter(sizes.block_size, sizes.num_blocks, sizes.num_seats)
    ),
}


def check_router(name: str) -> str:
    """Return ``name`` as it stands in ``ROUTERS``. UsageError for any other."""
    plain = name.strip().casefold().replace("_", "-")
    if plain not in ROUTERS:
        raise UsageError(f"Unknown --router '{name}'.", hint="one of " + ", ".join(ROUTERS))
    return plain


def make_router(name: str, sizes: ReplicaSizes) -> Router:
    """Return a router that has seen nothing."""
    return ROUTERS[name].make(sizes)

"""How many requests of a trace a fleet's play takes in a second, on one core.

    python benchmarks/fleet_play.py TRACE                                   # llama-3.1-8b on 32 H100
    python benchmarks/fleet_play.py TRACE --router least_loaded --shares 0.25 0.5 1   # linear in requests?
    python benchmarks/fleet_play.py TRACE --profile                         # where the time goes

TRACE is Mooncake's conversation trace, or another with block ids. The time is that of ``Fleet.play``: reading the file
and predicting the deployment are stated apart. A step takes what the estimate's clock says.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from dataclasses import replace
from pathlib import Path

import kvplan
from kvplan.fleet.replicas.fleet import Fleet, FleetPlay
from kvplan.fleet.replicas.setup import PoolLayout, ReplicaSetup
from kvplan.fleet.requests import FleetRequest, requests_of_file
from kvplan.fleet.routers.in_turn import LeastLoaded, RoundRobin

ROUTERS = {"round_robin": RoundRobin, "least_loaded": LeastLoaded}


def setup_of(model: str, gpu: str, ranks: int) -> ReplicaSetup:
    """A replica of full attention, with the pool and the steps of the estimate."""
    answer = kvplan.estimate(model, gpu=gpu, ctx="128k", tensor_parallel_size=ranks).answer
    (speed,), (deployment,) = answer.speeds, answer.deployments
    assert speed is not None, "it does not fit"
    block, tokens = deployment.block_size, deployment.kv_cache_tokens
    rules = replace(speed.rules, max_num_seqs=256, max_num_batched_tokens=8192)
    return ReplicaSetup(rules, speed.model.steps, PoolLayout.full_attention(block, tokens // block))


def timed(setup: ReplicaSetup, replicas: int, router: str, requests: list[FleetRequest]) -> tuple[float, FleetPlay]:
    """Seconds of the processor that a play takes, and what it says."""
    fleet = Fleet(setup, replicas, ROUTERS[router]())
    begun = time.process_time()
    play = fleet.play(requests)
    return time.process_time() - begun, play


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--gpu", default="h100-sxm")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=32)
    parser.add_argument("--router", choices=ROUTERS, default="round_robin")
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0], help="of the trace's requests")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    begun = time.perf_counter()
    requests = list(requests_of_file(options.trace))
    read = time.perf_counter() - begun
    setup = setup_of(options.model, options.gpu, options.tp)
    print(f"{len(requests):,} requests read in {read:.1f} s; {options.replicas} x {setup.pool.num_blocks:,} blocks")
    profiler = cProfile.Profile()
    for share in options.shares:
        part = requests[: round(share * len(requests))]
        if options.profile:
            profiler.enable()
        seconds, play = timed(setup, options.replicas, options.router, part)
        profiler.disable()
        prompts = sum(each.num_prompt_tokens for each in part)
        hits = sum(each.num_hit_tokens for each in play.seen)
        ttft = sorted(each.ttft_seconds for each in play.seen)
        print(
            f"{len(part):>7,} requests in {seconds:6.2f} s: {len(part) / seconds:7,.0f} requests/s, "
            f"{hits / prompts:.1%} of prompt tokens found, TTFT p50 {ttft[len(ttft) // 2]:.2f} s, "
            f"{play.num_preemptions} preemptions"
        )
    if options.profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()

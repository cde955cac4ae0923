"""What a fleet's play says of hits and steps, beside engines.

    python tools/check_fleet.py TRACE hits                         # a cache that never evicts, over the whole trace
    python tools/check_fleet.py TRACE steps                        # kvplan's own engine, without tensors
    python tools/check_fleet.py TRACE vllm --vllm-python PYTHON    # vLLM's scheduler and block pool, without a model
    python tools/check_fleet.py TRACE served --vllm-python PYTHON  # a vLLM server of a tiny model, on the CPU

TRACE is Mooncake's conversation trace. Its first requests are shortened 16 times and sent at whole steps, ten of which
are a second of the trace; the server is sent one after the other. Exit code 1 where a request or a step is not equal.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fleet_checks.beside import Case, Compared, compared, vllm_records
from fleet_checks.playing import HalfStep, played
from fleet_checks.trace import longest, shortened
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.fleet.replicas.fleet import Fleet
from kvplan.fleet.replicas.pool import BlockPool
from kvplan.fleet.replicas.setup import CacheGroup, PoolLayout, ReplicaSetup
from kvplan.fleet.requests import FleetRequest, requests_of_file
from kvplan.fleet.routers.in_turn import RoundRobin

_BLOCK = 512
FACTOR, STEPS_PER_SECOND = 16, 10.0
KINDS = {
    "full attention": (CacheGroup("full", 16),),
    "windows": (CacheGroup("full", 16), CacheGroup("sliding", 16, 128, 5)),
    "short windows": (CacheGroup("full", 32), CacheGroup("sliding", 8, 17)),
    "chunks": (CacheGroup("full", 16), CacheGroup("chunked", 16, 256, 3)),
    "states": (CacheGroup("full", 16), CacheGroup("state", 16, None, 3)),
}
_SERVED_BLOCK, _SERVED_BLOCKS, _LONG = 32, (600, 3000), 100_000.0
"""Tokens of a block, the fewest of vLLM's CPU backend; pools that evict early and late; steps in between."""
SETTINGS = ((64, 512, 700), (16, 128, 3000), (32, 4096, 1000))
"""Seats, token budget, blocks."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one check and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("check", choices=("hits", "steps", "vllm", "served"))
    parser.add_argument("--vllm-python", default=sys.executable, help="the Python that has vLLM")
    parser.add_argument("--requests", type=int, default=500)
    options = parser.parse_args(arguments)
    if options.check == "hits":
        return _hits(options.trace)
    requests = shortened(options.trace, options.requests, FACTOR, STEPS_PER_SECOND)
    if options.check == "served":
        return _beside_server(requests, options.vllm_python)
    found = _beside_vllm(requests, options.vllm_python) if options.check == "vllm" else _beside_engine(requests)
    good = True
    print("| kind | seats, budget, blocks | requests | unlike | steps | unlike | hit tokens | preemptions |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, settings, one in found:
        good = good and one.is_equal
        print(
            f"| {name} | {settings} | {one.num_requests} | {one.unlike} | {one.num_steps:,} | {one.unlike_steps} "
            f"| {one.hit_tokens:,} | {one.preemptions} |",
            flush=True,
        )
    return 0 if good else 1


def _hits(trace: Path) -> int:
    """One replica that reads every prompt at once and never evicts."""
    requests = [replace(each, num_output_tokens=1, sent=float(each.number)) for each in requests_of_file(trace)]
    blocks = sum(-(-each.num_prompt_tokens // _BLOCK) for each in requests)
    layout = PoolLayout.full_attention(_BLOCK, blocks + len(requests))
    rules = SchedulingRules(1, 1 << 20, 1e12)
    seen = Fleet(ReplicaSetup(rules, HalfStep(), layout), 1, RoundRobin()).play(requests).seen
    found = sum(each.num_hit_tokens for each in seen) // _BLOCK
    prompts = sum(each.num_prompt_tokens for each in requests)
    print(f"{len(requests):,} requests, {blocks:,} blocks of {_BLOCK} tokens, {found:,} found: {found / blocks:.1%}")
    print(f"{found * _BLOCK / prompts:.1%} of {prompts:,} prompt tokens")
    return 0


def _beside_server(requests: Sequence[FleetRequest], python: str) -> int:
    """One request after the other, so that no time decides what is found."""
    from fleet_checks.served import served_hits

    apart = [replace(each, sent=each.number * _LONG) for each in requests]
    unlike = 0
    print("| blocks of 32 | requests | prompt tokens | found by vLLM | by the play | requests unlike |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for num_blocks in _SERVED_BLOCKS:
        found = served_hits(apart, python, _SERVED_BLOCK, num_blocks)
        play = played(apart, PoolLayout.full_attention(_SERVED_BLOCK, num_blocks), 16, 2048)
        mine = [play.outcomes[each.number].hit for each in apart]
        differ = sum(one != other for one, other in zip(found, mine, strict=True))
        unlike += differ
        prompts = sum(each.num_prompt_tokens for each in apart)
        figures = f"{len(apart)} | {prompts:,} | {sum(found):,} | {sum(mine):,} | {differ}"
        print(f"| {num_blocks:,} | {figures} |", flush=True)
    return 1 if unlike else 0


def _beside_vllm(requests: Sequence[FleetRequest], python: str) -> Iterator[tuple[str, str, Compared]]:
    cases = [
        _case(_named(name, interval, exports_states=exports), layout, longest(requests), *setting)
        for name, groups in KINDS.items()
        for interval in (0, None)
        if interval == 0 or any(group.kind in ("sliding", "state") for group in groups)
        for exports in (False, True)
        if not exports or any(group.kind == "state" for group in groups)
        for layout in [PoolLayout(groups, 0, retention_interval=interval, exports_states=exports)]
        for setting in SETTINGS
    ]
    for case, record in zip(cases, vllm_records(requests, cases, python), strict=True):
        play = played(requests, case.layout, case.max_num_seqs, case.budget)
        settings = f"{case.max_num_seqs}, {case.budget:,}, {case.layout.num_blocks:,}"
        yield case.name, settings, compared(play, record)


def _case(name: str, layout: PoolLayout, longest_tokens: int, seats: int, budget: int, num_blocks: int) -> Case:
    """vLLM does not start with a pool that the longest request does not fit, so that is the least."""
    needed = BlockPool(layout, budget).blocks_for(longest_tokens)
    return Case(name, replace(layout, num_blocks=max(num_blocks, needed)), seats, budget)


def _named(kind: str, interval: int | None, *, exports_states: bool) -> str:
    """The kind, whether kernels write states on their way, and whether it is not vLLM's default interval that windows
    and states are kept at."""
    written = f"{kind}, written on the way" if exports_states else kind
    return written if interval == 0 else f"{written}, no interval"


def _beside_engine(requests: Sequence[FleetRequest]) -> Iterator[tuple[str, str, Compared]]:
    from fleet_checks.own_engine import as_own_engine, engine_cases, run_engine

    for name, config in engine_cases(longest(requests)):
        record, layout = run_engine(requests, config)
        play = played(requests, layout, config.max_num_seqs, config.max_num_batched_tokens, as_own_engine)
        settings = f"{config.max_num_seqs}, {config.max_num_batched_tokens:,}, {layout.num_blocks:,}"
        yield name, settings, compared(play, record)


if __name__ == "__main__":
    sys.exit(main())

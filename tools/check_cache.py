"""Checks the curves of `kvplan cache`: against kvplan's own engine, and against vLLM's own manager of host memory.

    python tools/check_cache.py TRACE                  # the first 500 requests, 16 times as short, over our own engine
    python tools/check_cache.py TRACE --vllm           # the whole trace over vLLM's manager (needs vLLM 0.33, no GPU)

Each line has a size of pool and host memory in blocks, the hits there, the curve's, and whether they are equal
request by request. Exit code 1 where the own engine's differ.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cache_checks.own_engine import OwnEngine
from cache_checks.own_rule import found_by_rule
from cache_checks.prompts import shortened
from cache_checks.vllm_host import found_by_vllm
from cache_checks.vllm_pool import found_by_pool
from kvplan.fleet.requests import requests_of_file
from kvplan.fleet.tiers.chains import chains_of
from kvplan.fleet.tiers.distances import reuse_distances
from kvplan.fleet.tiers.replayed import Weights, replayed_hits
from kvplan.workload.part import FilePart

_BLOCK = 16
_SHORTER = 16
_POOLS = (800, 2000, 6000, 12000)
_TIERS = ((800, 2000), (800, 6000), (2000, 6000), (2000, 12000))
_FEW, _WINDOW = 300, 128
_WINDOWED_POOLS = (3000, 6000, 12000, 24000)
_VLLM_BLOCK = 512
_VLLM_TIERS = ((872, 2048), (872, 4096), (872, 16384), (872, 65536))
"""In blocks of 512 tokens; 872 are the pool of llama-3.1-8b on one H100, 16,384 are 1 TiB."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--vllm", action="store_true")
    asked = parser.parse_args()
    return check_vllm(asked.trace) if asked.vllm else check_own_engine(asked.trace, asked.requests)


def check_own_engine(trace: Path, count: int) -> int:
    """Return 1 where hits differ."""
    requests = shortened(requests_of_file(trace, FilePart(most=count)), _SHORTER, _BLOCK)
    chains = chains_of(requests, _BLOCK)
    curve, engine = reuse_distances(chains), OwnEngine(requests, _BLOCK)
    num_wrong = 0
    for num_blocks in _POOLS:
        hits = [each.in_pool for each in engine.found(num_blocks)]
        is_equal = hits == curve.hits_by_request(num_blocks - 1)
        num_wrong += not is_equal
        print(f"pool {num_blocks:,}: {sum(hits):,}, curve {curve.num_hits(num_blocks - 1):,}, equal: {is_equal}")
    for num_blocks, num_host in _TIERS:
        found = engine.found(num_blocks, num_host)
        is_equal = found == found_by_rule(chains, num_blocks, num_host)
        num_wrong += not is_equal
        both = curve.num_hits(num_blocks - 1 + num_host)
        total = sum(map(sum, found))
        print(
            f"pool {num_blocks:,}, host {num_host:,}: {total:,}, by its rule equal: {is_equal}; "
            f"curve of both together {both:,}"
        )
    engine.close()
    return 1 if num_wrong else 0


def check_vllm(trace: Path) -> int:
    """Print both; they need not be equal."""
    chains = chains_of(requests_of_file(trace), _VLLM_BLOCK, keeps_answers=False)
    curve = reuse_distances(chains)
    for num_blocks, num_host in _VLLM_TIERS:
        found = found_by_vllm(chains, num_blocks, num_host)
        total, said = sum(map(sum, found)), curve.num_hits(max(num_blocks - 1, num_host))
        print(f"pool {num_blocks:,}, host {num_host:,}: {total:,}, curve {said:,} ({100 * (total / said - 1):+.2f} %)")
    requests = shortened(requests_of_file(trace, FilePart(most=_FEW)), _SHORTER, _BLOCK)
    hybrid, weights = chains_of(requests, _BLOCK), Weights(1, 2 * -(-(_WINDOW - 1) // _BLOCK))
    for num_blocks in _WINDOWED_POOLS:
        hits = found_by_pool(requests, _BLOCK, _WINDOW, num_blocks)
        replayed = [_BLOCK * units for units in replayed_hits(hybrid, weights, num_blocks - 1)]
        alike = sum(one == other for one, other in zip(hits, replayed, strict=True))
        print(
            f"windows, pool {num_blocks:,}: {sum(hits):,} tokens, replay {sum(replayed):,}, "
            f"equal for {alike} of {len(hits)} requests"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

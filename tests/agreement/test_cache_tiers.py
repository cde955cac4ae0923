"""The curve and kvplan's own engine agree on every request's hits: in the pool, and in tiers by the engine's rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from random_traces import branching_trace

from cache_checks.own_engine import OwnEngine
from cache_checks.own_rule import found_by_rule
from cache_checks.prompts import shortened
from kvplan.fleet.tiers.chains import chains_of
from kvplan.fleet.tiers.distances import reuse_distances

_BLOCK = 8
_REQUESTS = shortened(branching_trace(3, count=80, branches=4, run_tokens=60), 1, _BLOCK)
_CHAINS = chains_of(_REQUESTS, _BLOCK)
_LONGEST = max(chain.num_prompt_blocks for chain in _CHAINS) + 2


@pytest.fixture(scope="module")
def engine() -> Iterator[OwnEngine]:
    found = OwnEngine(_REQUESTS, _BLOCK)
    yield found
    found.close()


@pytest.fixture(scope="module")
def engine_with_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnEngine]:
    found = OwnEngine(_REQUESTS, _BLOCK, tmp_path_factory.mktemp("kv"))
    yield found
    found.close()


@pytest.mark.parametrize("num_blocks", [_LONGEST, 100, 250, 900])
def test_the_pool_hits_what_the_curve_says(engine: OwnEngine, num_blocks: int) -> None:
    """One block holds what fills none, for the request that runs."""
    found = engine.found(num_blocks)
    assert [each.in_pool for each in found] == reuse_distances(_CHAINS).hits_by_request(num_blocks - 1)


@pytest.mark.parametrize(("num_blocks", "num_host"), [(_LONGEST, 40), (_LONGEST, 120), (100, 100), (100, 600)])
def test_host_memory_hits_what_its_rule_says(engine: OwnEngine, num_blocks: int, num_host: int) -> None:
    """What was evicted and loaded again lies in both: no more is found than in a cache of both sizes together."""
    found = engine.found(num_blocks, num_host)
    assert found == found_by_rule(_CHAINS, num_blocks, num_host)
    assert sum(each.in_host for each in found) > 0
    curve = reuse_distances(_CHAINS)
    total = sum(each.in_pool + each.in_host for each in found)
    assert curve.num_hits(max(num_blocks - 1, num_host)) <= total <= curve.num_hits(num_blocks - 1 + num_host)


@pytest.mark.parametrize(("num_host", "num_disk"), [(0, 100), (40, 60), (40, 200), (100, 400)])
def test_disk_hits_what_its_rule_says(engine_with_disk: OwnEngine, num_host: int, num_disk: int) -> None:
    found = engine_with_disk.found(_LONGEST, num_host, num_disk)
    assert found == found_by_rule(_CHAINS, _LONGEST, num_host, num_disk)
    assert sum(each.on_disk for each in found) > 0

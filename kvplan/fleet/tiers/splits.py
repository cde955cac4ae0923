"""Which replica's cache a request meets, where several have caches of their own.

round-robin   one after the other
prefix        the replica that knows most of the prompt, if that is more than 30 % of it; else the one with the fewest
              prompt tokens so far (SGLang's router, cache_threshold 0.3)
shared        all replicas use one tier
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvplan.fleet.requests import FleetRequest

SPLITS: Final = ("round-robin", "prefix", "shared")
_KNOWN_SHARE: Final = 0.3


def split_requests(requests: Sequence[FleetRequest], num_caches: int, rule: str) -> list[list[FleetRequest]]:
    """Return the requests of each cache, in their order."""
    if num_caches == 1 or rule == "shared":
        return [list(requests)]
    if rule == "round-robin":
        return [list(requests[place::num_caches]) for place in range(num_caches)]
    assert rule == "prefix", f"no such split: {rule}"
    return _by_prefix(requests, num_caches)


def _by_prefix(requests: Sequence[FleetRequest], num_caches: int) -> list[list[FleetRequest]]:
    found: list[list[FleetRequest]] = [[] for _ in range(num_caches)]
    num_tokens = [0] * num_caches
    known: dict[int, dict[int, int]] = {}
    for request in requests:
        matches = _matches(request, known)
        best = max(matches, key=lambda place: (matches[place], -num_tokens[place]), default=None)
        if best is None or matches[best] <= _KNOWN_SHARE * request.num_prompt_tokens:
            best = min(range(num_caches), key=num_tokens.__getitem__)
        found[best].append(request)
        num_tokens[best] += request.num_prompt_tokens
        for run in request.runs:
            places = known.setdefault(run.key, {})
            places[best] = max(places.get(best, 0), run.end)
    return found


def _matches(request: FleetRequest, known: dict[int, dict[int, int]]) -> dict[int, int]:
    """Return how many tokens of the prompt each replica has seen, of those that have seen any."""
    matches: dict[int, int] = {}
    begun = 0
    for run in request.runs:
        for place, end in known.get(run.key, {}).items():
            if matches.get(place, 0) == begun:
                matches[place] = min(end, run.end)
        begun = run.end
    return matches

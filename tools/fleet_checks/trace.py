"""The first requests of a trace, shortened, as prompts of numbers that two engines understand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvplan.fleet.requests import FleetRequest, TokenRun, requests_of_file
from kvplan.workload.part import FilePart

_TOKENS = 100_000


def shortened(path: Path, count: int, factor: int, steps_per_second: float) -> list[FleetRequest]:
    """Return the first ``count`` requests of a trace, ``factor`` times as short, which are sent at whole steps."""
    requests = requests_of_file(path, FilePart(most=count))
    return [
        replace(
            each,
            sent=float(int(each.sent * steps_per_second)),
            num_prompt_tokens=max(each.num_prompt_tokens // factor, 1),
            num_output_tokens=max(each.num_output_tokens // factor, 1),
            runs=_short_runs(each, factor),
        )
        for each in requests
    ]


def _short_runs(request: FleetRequest, factor: int) -> tuple[TokenRun, ...]:
    prompt = max(request.num_prompt_tokens // factor, 1)
    found: list[TokenRun] = []
    for run in request.runs:
        end = min(run.end // factor if run.end < request.num_prompt_tokens else prompt, prompt)
        if end > (found[-1].end if found else 0):
            found.append(TokenRun(run.key, end))
    return tuple(found)


def prompt_token_ids(request: FleetRequest, vocabulary: int = _TOKENS) -> list[int]:
    """Return the prompt: two of them begin alike as far as their runs have the same keys."""
    tokens: list[int] = []
    for key, end in (*request.runs, TokenRun(10_000_019 + request.number, request.num_prompt_tokens)):
        tokens += [1 + (key * 7919 + place * 104_729) % (vocabulary - 2) for place in range(len(tokens), end)]
    return tokens


def longest(requests: Sequence[FleetRequest]) -> int:
    """Return the tokens of the longest request with its answer."""
    return max(each.num_prompt_tokens + each.num_output_tokens for each in requests)

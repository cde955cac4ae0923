"""A trace's requests as token ids, shortened: equal runs are equal tokens, and no other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from kvplan.fleet.requests import FleetRequest, TokenRun

VOCABULARY = 384


def shortened(requests: Sequence[FleetRequest], factor: int, block_tokens: int) -> list[FleetRequest]:
    """Return requests ``factor`` times as short, with one answered token, none of which ends where a block does.

    So each holds exactly one block that is not full, and never kept.
    """
    found = []
    for request in requests:
        prompt = max(request.num_prompt_tokens // factor, 2)
        prompt += prompt % block_tokens == 0
        runs: list[TokenRun] = []
        for run in request.runs:
            end = run.end // factor if run.end < request.num_prompt_tokens else prompt
            if end > (runs[-1].end if runs else 0):
                runs.append(TokenRun(run.key, min(end, prompt)))
        found.append(replace(request, num_prompt_tokens=prompt, num_output_tokens=1, runs=tuple(runs)))
    return found


def token_ids(request: FleetRequest) -> list[int]:
    """Return the prompt: of each run, tokens that only its key has."""
    ids: list[int] = []
    for run in (*request.runs, TokenRun(-1 - request.number, request.num_prompt_tokens)):
        count = run.end - len(ids)
        ids += random.Random(run.key).choices(range(1, VOCABULARY), k=max(count, 0))
    return ids

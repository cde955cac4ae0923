"""Two records of the same requests beside each other, and vLLM's as a program gives it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from fleet_checks.playing import Outcome, Record
from fleet_checks.trace import longest, prompt_token_ids
from kvplan.errors import KvplanError
from kvplan.fleet.replicas.setup import PoolLayout
from kvplan.fleet.requests import FleetRequest

_PROGRAM = Path(__file__).with_name("vllm_scheduler.py")


class Case(NamedTuple):
    """How an engine is set up. name: of the kind of model."""

    name: str
    layout: PoolLayout
    max_num_seqs: int
    budget: int


class Compared(NamedTuple):
    """unlike: requests that saw something else; unlike_steps: steps with other tokens, or other numbers of requests."""

    num_requests: int
    unlike: int
    num_steps: int
    unlike_steps: int
    hit_tokens: int
    preemptions: int

    @property
    def is_equal(self) -> bool:
        return not self.unlike and not self.unlike_steps


def compared(play: Record, engine: Record) -> Compared:
    """Return how ``play`` differs from what ``engine`` did.

    Steps that a play takes together are compared with the waiting requests of the first of them alone: it does not look
    at requests that come while no seat is free.
    """
    outcomes = engine.outcomes
    unlike = sum(play.outcomes.get(number) != outcome for number, outcome in outcomes.items())
    pairs = list(zip(play.steps, engine.steps, strict=False))
    differ = sum(mine[:2] != theirs[:2] or mine[2] not in (None, theirs[2]) for mine, theirs in pairs)
    differ += abs(len(play.steps) - len(engine.steps))
    hits = sum(outcome.hit for outcome in outcomes.values())
    preemptions = sum(outcome.preemptions for outcome in outcomes.values())
    return Compared(len(outcomes), unlike, len(engine.steps), differ, hits, preemptions)


def vllm_records(requests: Sequence[FleetRequest], cases: Sequence[Case], python: str) -> Iterator[Record]:
    """Run vLLM's scheduler in the environment of ``python``, one case after the other. KvplanError where it fails."""
    num_found = 0
    with tempfile.TemporaryFile("w+") as asked, tempfile.TemporaryFile("w+") as errors:
        json.dump(_document(requests, cases), asked)
        asked.seek(0)
        environment = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"}
        with subprocess.Popen(
            [python, str(_PROGRAM)], stdin=asked, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as program:
            assert program.stdout is not None
            for line in program.stdout:
                if line.startswith("RECORD "):
                    num_found += 1
                    yield _record(json.loads(line[7:]))
        errors.seek(0)
        if num_found < len(cases):
            raise KvplanError(
                f"vLLM's scheduler stopped: {errors.read()[-500:]}", hint="has that Python vLLM 0.32 or later?"
            )


def _record(found: dict[str, Any]) -> Record:
    outcomes = {
        int(number): Outcome(one["hit"], one["first"], one["last"], one["preemptions"])
        for number, one in found["requests"].items()
    }
    return Record(outcomes, [(step["tokens"], step["running"], step["waiting"]) for step in found["steps"]])


def _document(requests: Sequence[FleetRequest], cases: Sequence[Case]) -> dict[str, Any]:
    return {
        "max_model_len": longest(requests) + 8,
        "requests": [
            {
                "number": each.number,
                "at_step": int(each.sent),
                "num_output_tokens": each.num_output_tokens,
                "prompt_token_ids": prompt_token_ids(each),
            }
            for each in requests
        ],
        "cases": [
            {
                "groups": [asdict(group) for group in case.layout.groups],
                "num_blocks": case.layout.num_blocks,
                "retention_interval": case.layout.retention_interval,
                "exports_states": case.layout.exports_states,
                "max_num_seqs": case.max_num_seqs,
                "max_num_batched_tokens": case.budget,
            }
            for case in cases
        ],
    }

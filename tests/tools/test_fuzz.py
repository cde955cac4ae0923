"""tools/fuzz: a small run of every target, and a harness that sees faults, hangs and bombs."""

from __future__ import annotations

import random
import time
from importlib import import_module
from pathlib import Path

import pytest

from fuzz.harness import Fault, Target, run_cases
from fuzz.mutations import mutate_bytes, mutate_json
from run_fuzz import TARGETS

CASES = dict.fromkeys(TARGETS, 60) | {"config": 40, "bodies": 40, "run_directories": 30}
"""Fewer where each takes a tenth of a second: 20,000 of every target were tried (docs/reliability.md)."""


@pytest.mark.parametrize("name", TARGETS)
def test_no_case_is_at_fault(name: str) -> None:
    with import_module(f"fuzz.targets.{name}").open_target() as target:
        outcomes = run_cases(target, cases=CASES[name], seed=1)
    assert outcomes.num_faults == 0, outcomes.faults
    assert sum(outcomes.counts.values()) == CASES[name]


def _try(case: float) -> str:
    if case < 0.2:
        raise Fault("wrong")
    if case < 0.4:
        time.sleep(5)
    if case < 0.6:
        bytearray(64 * 1024**3)
    return "right"


def test_the_harness_counts_faults_hangs_and_bombs(tmp_path: Path) -> None:
    cases = iter((0.1, 0.3, 0.5, 0.9))
    target = Target(make_case=lambda rng: next(cases), try_case=_try, seconds_per_case=0.2)
    outcomes = run_cases(target, cases=4, keep=tmp_path)
    assert outcomes.counts == {"right": 1}
    texts = [text for _, text in outcomes.faults]
    assert "Fault: wrong" in texts[0]
    assert texts[1].startswith("hang")
    assert "MemoryError" in texts[2]
    assert {file.name for file in tmp_path.iterdir()} == {"case-0.txt", "case-1.txt", "case-2.txt"}


def test_a_case_follows_from_its_seed_and_number() -> None:
    document = {"a": [1, 2, {"b": "c"}], "d": 4}
    made = [mutate_json(document, random.Random(f"3:{number}")) for number in range(50)]
    assert repr(made) == repr([mutate_json(document, random.Random(f"3:{number}")) for number in range(50)])
    assert document == {"a": [1, 2, {"b": "c"}], "d": 4}
    assert len({repr(case) for case in made}) > 40
    data = bytes(range(200))
    assert mutate_bytes(data, random.Random(5)) == mutate_bytes(data, random.Random(5)) != data

"""Loads played with what a calibration found: exact on a device of known coefficients, and scored as they are apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_sweep import TRUTH, WORKLOAD, tied, write_sweep

from kvplan.calibrate.trials import read_trial_sets
from kvplan.runs.trials import SWEEP_LOAD
from kvplan.sweeps.plan import make_plan
from measure_loads import LOADS, REPEATED, SEATS, in_turn, is_load, options
from score_load_model import Scored, main, print_scores, score_directory


def with_loads(directory: Path, loads: Sequence[dict[str, float]], slower: float = 1.0) -> Path:
    """A sweep with all requests at once, and each of ``loads`` with 8 seats on a device ``slower`` times as slow."""
    device = tied(TRUTH)
    found = write_sweep(directory, speed=device)
    lines = (found / "trials.jsonl").read_text(encoding="utf-8").splitlines()
    for index, load in enumerate(loads):
        speed = device if index == 0 else replace(device, bandwidth=device.bandwidth / slower)
        workload = replace(WORKLOAD, **load)  # type: ignore[arg-type]
        other = write_sweep(directory.parent / f"load{index}", speed=speed, workload=workload, seqs=(8,), tokens=(96,))
        record = json.loads((other / "trials.jsonl").read_text(encoding="utf-8"))
        record["row"] |= {"trial_id": f"load{index}", "run_number": index + 1}
        lines.append(json.dumps(record))
    (found / "trials.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return found


def test_loads_on_a_known_device_are_predicted_exactly(tmp_path: Path) -> None:
    directory = with_loads(tmp_path / "a", [{"request_rate": 4.0}, {"max_concurrency": 3}])
    scored = score_directory(read_trial_sets([directory]))
    assert [each.load for each in scored] == ["4.0 requests/s", "3 in flight"]
    for each in scored:
        assert each.errors == pytest.approx([0, 0, 0, 0], abs=0.02)


def test_a_slower_device_shows_as_error_and_as_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second run reads its weights half as fast; decoding is nearly all reading."""
    directory = with_loads(tmp_path / "a", [{"max_concurrency": 3}] * 2, slower=2.0)
    first, second = score_directory(read_trial_sets([directory]))
    assert first.predicted == second.predicted
    assert second.errors[1] < -0.3 < first.errors[1]
    print_scores([[first, second]])
    apart = capsys.readouterr().out.splitlines()[-1]
    assert f"{100 * (second.measured[1] / first.measured[1] - 1):.1f} %" in apart


def test_what_ran_on_a_busy_machine_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = with_loads(tmp_path / "a", [{"max_concurrency": 3}] * 2, slower=2.0)
    path = directory / "trials.jsonl"
    *others, last = path.read_text(encoding="utf-8").splitlines()
    disturbed = json.loads(last)
    disturbed["row"]["other_cpu_pct"] = 11.0
    path.write_text("\n".join([*others, json.dumps(disturbed)]) + "\n", encoding="utf-8")
    main([str(directory)])
    printed = capsys.readouterr().out
    assert "3 in flight, 1 runs" in printed and printed.rstrip().splitlines()[-1].startswith("1 trials left out")


def test_medians_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [Scored("a", (10.0,) * 4, (measured,) * 4) for measured in (8.0, 10.0, 12.5)]
    print_scores([[runs[0]], [runs[1]], [runs[2]]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| a, 3 runs | 10.0 / 10.0, +0 % |")
    assert lines[3].startswith("| median error of 3 runs | 20.0 % |")


def test_every_setting_and_load_runs_in_an_order_of_the_seed() -> None:
    plan = make_plan(replace(options("smollm2-135m", 3), device_memory="768MiB"))
    orders = [[(each.settings, each.load) for each in in_turn(plan, seed).trials] for seed in (3, 4)]
    assert orders[0] != orders[1] and sorted(map(str, orders[0])) == sorted(map(str, orders[1]))
    mixed = in_turn(plan, 3).trials
    assert [each.number for each in mixed] == list(range(1, len(mixed) + 1))
    assert len({each.trial_id for each in mixed}) == len(mixed)
    assert {each.settings.max_num_seqs for each in mixed if each.load == SWEEP_LOAD} == set(SEATS)
    loads = [each.load for each in mixed if is_load(each)]
    assert len(loads) == len(LOADS) + len(REPEATED) and all(loads.count(each) == 2 for each in REPEATED)

"""The measurement script, run dry: every line of it runs before it meets a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvplan_engine.measuring import script as measure
from kvplan_engine.measuring import support

PROVENANCE = {"device", "driver", "torch", "cuda", "commit", "uncommitted_changes", "date", "command", "dry_run"}


@pytest.mark.slow
@pytest.mark.parametrize("section", measure.MEASURES)
def test_every_section_runs_and_writes_rows_with_their_provenance(section: str, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    measure.measure_section(section, out, dry=True, seconds=100.0)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) >= 2
    for row in rows:
        assert row.keys() >= PROVENANCE
        assert row["dry_run"] is True
        assert row["value"] > 0
        assert row["median_seconds"] > 0
        assert row["share"] is None or row["share"] > 0


@pytest.mark.slow
def test_the_script_survives_a_section_that_fails(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    script = Path(measure.__file__)
    command = [sys.executable, str(script), "--dry-run", "--out", str(out), "--sections"]
    result = subprocess.run([*command, "operations"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "section operations: ok" in result.stdout
    assert "rotate_and_write_kv" in result.stdout
    last = json.loads(out.read_text().splitlines()[-1])
    assert (last["section"], last["outcome"]) == ("operations", "ok")
    out.unlink()
    out.mkdir()  # rows cannot be written
    result = subprocess.run([*command, "operations"], capture_output=True, text=True, check=False)
    assert result.returncode == 1


def test_an_unknown_section_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [measure.__file__, "--out", str(tmp_path / "x"), "--sections", "nothing"])
    assert measure.main() == 2
    assert "no section 'nothing'" in capsys.readouterr().err


def test_the_sections_fit_ten_minutes() -> None:
    """A part together, with a process that does not die; of speeds up to the last but six each may take its most."""
    assert measure.TOTAL_SECONDS + support.SECONDS_TO_DIE <= 575
    assert sum(list(measure.PARTS["speed"].values())[:-6]) <= measure.TOTAL_SECONDS
    assert sum(measure.PARTS["checks"].values()) <= measure.TOTAL_SECONDS
    assert measure.SECTION_SECONDS.keys() == measure.MEASURES.keys() | measure.TESTS.keys()


def test_a_section_that_hangs_is_stopped_with_all_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The rows that it has written stay, and so does the time of the others."""
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    commands = {"decode": [sys.executable, "-c", child], "step": [sys.executable, "-c", "pass"]}
    monkeypatch.setattr(measure, "command_of", lambda name, _: commands[name])
    monkeypatch.setitem(measure.SECTION_SECONDS, "decode", 1)
    options = SimpleNamespace(seconds=100.0, out=tmp_path / "rows", dry_run=True)
    assert measure.run_sections(["decode", "step"], options) == {"decode": "stopped after 1 s", "step": "ok"}
    options.seconds = 0.0
    assert measure.run_sections(["step"], options) == {"step": "left out, the time is up"}
    told = [json.loads(line) for line in options.out.read_text().splitlines()]
    assert [line["outcome"] for line in told] == ["stopped after 1 s", "ok", "left out, the time is up"]


def test_a_process_that_does_not_die_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A device that hangs keeps its process from dying: the other sections go on without it."""
    waited: list[float] = []

    class Undying(subprocess.Popen):
        def wait(self, timeout: float | None = None) -> int:
            if self.poll() is not None:
                return super().wait()
            assert timeout is not None, "it would be waited for for good"
            waited.append(timeout)
            raise subprocess.TimeoutExpired("section", timeout)

    monkeypatch.setattr(support.os, "killpg", lambda *_: None)
    with (tmp_path / "log").open("wb") as log, monkeypatch.context() as patch:
        made: list[Undying] = []
        patch.setattr(support.subprocess, "Popen", lambda *a, **b: made.append(Undying(*a, **b)) or made[-1])
        outcome = support.outcome_of([sys.executable, "-c", "import time; time.sleep(60)"], 1, log)
    made[0].kill()
    super(Undying, made[0]).wait()
    assert outcome == "stopped after 1 s, and did not die"
    assert waited == [1, support.SECONDS_TO_DIE]


def test_a_section_that_fails_says_why_in_the_log_and_the_outcome(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tests that were all skipped are a failure too: there was no GPU."""
    programs = {"step": "raise SystemError('the reason')", "kernel_tests": "print('=== 52 skipped in 3 s ===')"}
    monkeypatch.setattr(measure, "command_of", lambda name, _: [sys.executable, "-c", programs[name]])
    options = SimpleNamespace(seconds=100.0, out=tmp_path / "rows.jsonl", dry_run=True)
    assert measure.run_sections(["step", "kernel_tests"], options) == {
        "step": "failed with exit code 1: SystemError: the reason",
        "kernel_tests": "no test ran: === 52 skipped in 3 s ===",
    }
    assert "SystemError: the reason" in (tmp_path / "rows.log").read_text()
    assert "SystemError: the reason" in capsys.readouterr().err


def test_a_missed_goal_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"name": "decode attention", "value": 1.0, "unit": "GB/s", "share": 0.5, "goal": 0.85, "shape": {"batch": 1}}
    origin = {"device": "some GPU", "driver": "13.0", "torch": "2.13", "commit": "abc"}
    out = tmp_path / "rows.jsonl"
    out.write_text(json.dumps(row | origin) + "\n" + json.dumps(row | origin | {"share": 0.9}) + "\n")
    measure.print_table(out, {"decode": "ok", "prefill": "failed with exit code 1"})
    printed = capsys.readouterr().out
    assert "some GPU, driver 13.0" in printed
    assert "0.85 MISSED" in printed
    assert "0.85 met" in printed
    assert "section prefill: failed with exit code 1" in printed

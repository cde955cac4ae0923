"""Shards and ``kvplan merge``: together they are the sweep of one machine, and what is not together is refused."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sweep_helpers import FAKE_WORKER, tiny_plan

from kvplan.errors import KvplanError, UsageError
from kvplan.runs.directory import TRIALS
from kvplan.sweeps.progress import SilentProgress
from kvplan.sweeps.session import resume_sweep, run_new_sweep
from kvplan.sweeps.shards.merging import merge_shards
from kvplan.sweeps.shards.shard import Shard

AXES = {"max_num_seqs": "1..8*2", "gpu_memory_utilization": "0.05,0.9"}
OF_THE_CLOCK = {"run_id", "started_at", "trial_seconds", "predicted_seconds", "learned_time_factor", "pred_error_pct"}
OF_THE_CLOCK |= {"prediction_origin"}  # none until a trial has been timed, by whichever worker
OF_THE_CLOCK |= {"pred_output_throughput", "pred_median_ttft_ms", "pred_median_tpot_ms", "pred_median_itl_ms"}
OF_THE_CLOCK |= {"throughput_over_pred", "ttft_over_pred", "tpot_over_pred"}
OF_A_RUN = {"run_id", "created_at", "command", "merged_from"}


def run(tmp_path: Path, name: str, **options: Any) -> Path:
    plan = tiny_plan(tmp_path, AXES, **options)
    run_new_sweep(plan, tmp_path / name, SilentProgress(), command="test", worker_command=FAKE_WORKER)
    return tmp_path / name


def run_shards(tmp_path: Path, count: int = 3, **options: Any) -> list[Path]:
    return [run(tmp_path, f"shard-{number}", shard=f"{number}/{count}", **options) for number in range(1, count + 1)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return run_shards(tmp_path_factory.mktemp("shards"))


def records(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / TRIALS).read_text().splitlines()]


def rows(directory: Path) -> list[dict[str, Any]]:
    return [
        {key: cell for key, cell in record["row"].items() if key not in OF_THE_CLOCK} for record in records(directory)
    ]


def table(directory: Path) -> list[dict[str, str]]:
    with (directory / "results.csv").open(newline="") as file:
        return [{key: cell for key, cell in row.items() if key not in OF_THE_CLOCK} for row in csv.DictReader(file)]


def document(directory: Path, name: str) -> dict[str, Any]:
    return json.loads((directory / name).read_text())


def test_merged_shards_are_the_sweep_of_one_machine(tmp_path: Path) -> None:
    whole = run(tmp_path, "whole", num_runs=2)
    parts = run_shards(tmp_path, num_runs=2)
    assert [len(records(part)) for part in parts] == [6, 6, 4], "both runs of a setting stay together"
    out = tmp_path / "merged"
    merged = merge_shards([parts[2], parts[0], parts[1]], out, command="test")
    assert merged.num_shards == 3
    assert rows(out) == rows(whole)
    assert [record["series"] for record in records(out)] == [record["series"] for record in records(whole)]
    assert table(out) == table(whole)
    one, other = document(whole, "manifest.json"), document(out, "manifest.json")
    assert {key: one[key] for key in one.keys() - OF_A_RUN} == {key: other[key] for key in other.keys() - OF_A_RUN}
    summary = document(out, "summary.json")
    assert summary == merged.summary
    expected = document(whole, "summary.json")
    for of_times in (summary, expected):  # predicted times follow the trials that a shard ran before
        errors = ("output_throughput_median_error_pct", "output_throughput_informed_error_pct")
        for name in (*errors, "num_timed", "num_informed"):
            of_times["predictions"].pop(name)
    for key in expected.keys() - {"run_id"}:
        assert summary[key] == expected[key], key


def test_a_merged_sweep_has_nothing_left_to_run(tmp_path: Path, shards: list[Path]) -> None:
    merge_shards(shards, tmp_path / "merged", command="test")
    before = (tmp_path / "merged" / TRIALS).read_bytes()
    resume_sweep(tmp_path / "merged", SilentProgress(), worker_command=("/bin/false",))
    assert (tmp_path / "merged" / TRIALS).read_bytes() == before


def test_a_shard_that_was_cut_short_is_refused_and_then_continued(tmp_path: Path, shards: list[Path]) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(shards[1], cut)
    lines = (cut / TRIALS).read_bytes().splitlines(keepends=True)
    (cut / TRIALS).write_bytes(b"".join(lines[:1]))
    with pytest.raises(KvplanError, match=r"cut has finished 1 of 3 trials") as refused:
        merge_shards([shards[0], cut, shards[2]], tmp_path / "merged", command="test")
    assert "--resume" in (refused.value.hint or "")
    assert not (tmp_path / "merged").exists()
    resume_sweep(cut, SilentProgress(), worker_command=FAKE_WORKER)
    merged = merge_shards([shards[0], cut, shards[2]], tmp_path / "merged", command="test")
    assert merged.summary["num_finished"] == 8


def test_reruns_stand_where_one_machine_has_them(tmp_path: Path, shards: list[Path]) -> None:
    """A rerun follows what it repeats if it did so in the shard, else it comes at the end."""
    changed = tmp_path / "with-reruns"
    shutil.copytree(shards[0], changed)
    kept = records(changed)
    soon, late = json.loads(json.dumps(kept[0])), json.loads(json.dumps(kept[1]))
    soon["row"] |= {"trial_id": "a" * 12, "run_number": 101, "rerun_of": 1}
    late["row"] |= {"trial_id": "b" * 12, "run_number": 101, "rerun_of": 1}
    lines = [json.dumps(record) for record in (kept[0], soon, *kept[1:], late)]
    (changed / TRIALS).write_text("\n".join(lines) + "\n")
    merge_shards([changed, *shards[1:]], tmp_path / "merged", command="test")
    ids = [record["row"]["trial_id"] for record in records(tmp_path / "merged")]
    assert ids.index("a" * 12) == ids.index(kept[0]["row"]["trial_id"]) + 1
    assert ids[-1] == "b" * 12
    assert [record["row"]["trial_number"] for record in records(tmp_path / "merged")] == list(range(1, 11))


def with_kernels(tmp_path: Path, shard: Path, kernels: str) -> Path:
    """A copy of a shard whose rows were computed so."""
    copy = tmp_path / f"{shard.name}-{kernels}"
    shutil.copytree(shard, copy)
    changed = [record | {"row": record["row"] | {"kernels": kernels}} for record in records(copy)]
    (copy / TRIALS).write_text("".join(json.dumps(record) + "\n" for record in changed))
    return copy


def test_speeds_with_and_without_kernels_are_not_merged(tmp_path: Path, shards: list[Path]) -> None:
    fast, other = (with_kernels(tmp_path, shard, "cpu-avx512") for shard in shards[:2])
    slow = with_kernels(tmp_path, shards[2], "reference")
    with pytest.raises(KvplanError, match=r"was measured without the engine's kernels, and .* with them") as refused:
        merge_shards([fast, other, slow], tmp_path / "merged", command="test")
    assert slow.name in refused.value.message
    merge_shards([fast, other, shards[2]], tmp_path / "merged", command="test")  # which does not say


def changed(tmp_path: Path, shard: Path, change: dict[str, Any]) -> Path:
    """A copy of a shard whose manifest says something else."""
    copy = tmp_path / f"{shard.name}-changed"
    shutil.copytree(shard, copy)
    manifest = document(copy, "manifest.json")
    for key, value in change.items():
        manifest[key] = manifest[key] | value if isinstance(value, dict) else value
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": {"config_sha256": "0"}}, "model.config_sha256 is 0 there"),
        ({"versions": {"kvplan": "0.0.9"}}, "version of kvplan is 0.0.9 there"),
        ({"versions": {"torch": "1.0"}}, "version of torch is 1.0 there"),
        ({"device": {"name": "Other CPU"}}, "device.name is Other CPU there"),
        ({"device": {"memory_bytes": 5}}, "device.memory_bytes is 5 there"),
        ({"workload": {"sha256": "1"}}, "workload.sha256 is 1 there"),
        ({"options": {"seed": 7}}, "--seed is 7 there"),
        ({"shard": {"count": 4}}, "the number of shards is 4 there"),
        ({"shard": {"plan_sha256": "x"}}, "the plan is x there"),
        ({"commit": "abc"}, "commit is abc there"),
    ],
)
def test_a_shard_of_another_sweep_is_refused(
    tmp_path: Path, shards: list[Path], change: dict[str, Any], sentence: str
) -> None:
    other = changed(tmp_path, shards[1], change)
    with pytest.raises(KvplanError, match="shard of another sweep") as refused:
        merge_shards([shards[0], other, shards[2]], tmp_path / "merged", command="test")
    assert sentence in refused.value.message
    assert refused.value.hint
    assert not (tmp_path / "merged").exists()


def test_holes_and_duplicates_are_refused(tmp_path: Path, shards: list[Path]) -> None:
    first, second, third = shards
    with pytest.raises(KvplanError, match="Shard 2/3 is missing"):
        merge_shards([first, third], tmp_path / "merged", command="test")
    twin = tmp_path / "twin"
    shutil.copytree(second, twin)
    with pytest.raises(KvplanError, match="are both shard 2/3"):
        merge_shards([first, second, third, twin], tmp_path / "merged", command="test")
    with pytest.raises(KvplanError, match="are both shard 1/3"):
        merge_shards([first, first, third], tmp_path / "merged", command="test")
    with pytest.raises(UsageError, match="needs at least two"):
        merge_shards([first], tmp_path / "merged", command="test")
    (twin / TRIALS).write_bytes(2 * (twin / TRIALS).read_bytes())
    with pytest.raises(KvplanError, match=r"holds trial .* twice"):
        merge_shards([first, twin, third], tmp_path / "merged", command="test")
    alien = tmp_path / "alien"
    shutil.copytree(second, alien)
    (alien / TRIALS).write_bytes((alien / TRIALS).read_bytes() + (first / TRIALS).read_bytes())
    with pytest.raises(KvplanError, match="which is not of its plan"):
        merge_shards([first, alien, third], tmp_path / "merged", command="test")


def test_the_command_writes_a_report_and_refuses_in_one_sentence(
    tmp_path: Path, shards: list[Path], printed_by: Callable[..., str], said_by: Callable[..., str]
) -> None:
    out = tmp_path / "merged"
    assert "3 shards, 8 trials: " in printed_by("merge", *map(str, shards), "--out", str(out))
    assert (out / "report.html").exists()
    error = said_by("merge", *map(str, shards), "--out", str(out), code=1)
    assert "already holds a run" in error
    assert "--resume" not in error, "a merge cannot be continued"
    error = said_by("merge", str(out), str(shards[0]), "--out", str(tmp_path / "again"), code=1)
    assert "is a whole sweep, not a shard of one" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("text", ["", "0/3", "4/3", "1", "a/b", "1/0", "-1/3"])
def test_a_malformed_shard_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not one of several parts"):
        Shard.parse(text)


def test_more_shards_than_settings_and_searches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be divided by 9") as refused:
        tiny_plan(tmp_path, AXES, shard="1/9")
    assert refused.value.hint == "use at most 8 shards"
    with pytest.raises(UsageError, match="--shard cannot be used with --boundary"):
        tiny_plan(tmp_path, {"gpu_memory_utilization": "0.5"}, boundary=("max_model_len",), shard="1/2")
    with pytest.raises(UsageError, match="--shard cannot be used with --search"):
        tiny_plan(tmp_path, search="max_concurrency=1..4", slo_seconds={"ttft": 1.0}, shard="1/2")

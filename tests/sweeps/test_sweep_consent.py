"""A run directory is data: continuing it runs and calls nothing that its user has not asked for."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kvplan.cli import main
from kvplan.sweeps.consent import note_started, refuse_unasked
from kvplan.sweeps.manifest import manifest_of
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import make_plan


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVPLAN_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state" / "started-sweeps"


@pytest.fixture(scope="module")
def manifest() -> Mapping[str, Any]:
    """Of a sweep of kvplan's own engine that has just begun."""
    axes = {"max_num_seqs": "1", "max_model_len": "128"}
    options = SweepOptions(model="gpt2", load_format="none", device_memory="1GiB", num_prompts=2, axes=axes,
                           input_len="8", output_len="2")  # fmt: skip
    return manifest_of(make_plan(options, None, None), "kvplan sweep")


@pytest.fixture
def directory(tmp_path: Path, manifest: Mapping[str, Any]) -> Path:
    """Its directory, whose manifest a stranger may change."""
    found = tmp_path / "run"
    found.mkdir()
    (found / "manifest.json").write_text(json.dumps(manifest))
    (found / "trials.jsonl").touch()
    return found


def change(directory: Path, **options: Any) -> None:
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["options"] |= {"load_format": "dummy", **options}
    path.write_text(json.dumps(manifest))


def program(folder: Path) -> tuple[Path, Path]:
    """A program, and the file that it leaves where it ran."""
    script, trace = folder / "evil.sh", folder / "it-ran"
    script.write_text(f"#!/bin/sh\ntouch {trace}\nexit 1\n")
    script.chmod(0o755)
    return script, trace


@pytest.mark.parametrize("name", ["engine_command", "engine_python"])
@pytest.mark.parametrize("engine", ["llamacpp", "vllm", "sglang", "trtllm"])
def test_a_program_that_only_the_directory_names_is_shown_and_not_run(
    engine: str, name: str, directory: Path, tmp_path: Path, said_by: Callable[..., str]
) -> None:
    script, trace = program(tmp_path)
    change(directory, engine=engine, **{name: str(script)})
    before = (directory / "trials.jsonl").read_bytes()
    talk = said_by("sweep", "--resume", str(directory), code=1)
    assert "was not started here" in talk and f"--{name.replace('_', '-')} {script}" in talk
    assert "give these options again" in talk
    assert not trace.exists() and (directory / "trials.jsonl").read_bytes() == before


def test_a_server_that_only_the_directory_names_is_not_called(
    directory: Path, said_by: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    change(directory, engine="openai", url="http://127.0.0.1:9")
    assert "what it would call is only its own word: --url http://127.0.0.1:9" in said_by(
        "sweep", "--resume", str(directory), code=1
    )
    assert "was not started here" not in said_by(
        "sweep", "--resume", str(directory), "--url", "http://127.0.0.1:9", code=1
    ), "given again, it is"


def test_a_program_that_is_given_again_runs(directory: Path, tmp_path: Path) -> None:
    script, trace = program(tmp_path)
    change(directory, engine="llamacpp", engine_command=str(script))
    other = ["sweep", "--resume", str(directory), "--engine-command", "/bin/true"]
    assert main(other) == 1 and not trace.exists(), "another one is refused"
    main(["sweep", "--resume", str(directory), "--engine-command", str(script)])
    assert trace.exists()


def test_whoever_started_a_sweep_here_may_continue_it(directory: Path, tmp_path: Path, state: Path) -> None:
    options = SweepOptions(model="gpt2", engine="vllm", engine_python="~/vllm/bin/python", engine_args=("a=1",))
    note_started(options, "run-1", directory)
    refuse_unasked(options, {}, "run-1", directory)
    (note,) = state.iterdir()
    assert stat.S_IMODE(state.stat().st_mode) == 0o700 and stat.S_IMODE(note.stat().st_mode) == 0o600
    for other, run_id, place in (
        (
            SweepOptions(model="gpt2", engine="vllm", engine_python="/tmp/python", engine_args=("a=1",)),
            "run-1",
            directory,
        ),
        (SweepOptions(model="gpt2", engine="vllm", engine_python="~/vllm/bin/python"), "run-1", directory),
        (options, "run-2", directory),
        (options, "run-1", tmp_path / "copy"),
    ):
        with pytest.raises(Exception, match="was not started here"):
            refuse_unasked(other, {}, run_id, place)


def test_a_note_that_others_could_have_written_says_nothing(directory: Path, state: Path) -> None:
    options = SweepOptions(model="gpt2", engine="llamacpp", engine_command="llama-server")
    note_started(options, "run-1", directory)
    state.chmod(0o777)
    with pytest.raises(Exception, match="was not started here"):
        refuse_unasked(options, {}, "run-1", directory)
    state.chmod(0o700)
    (note,) = state.iterdir()
    shutil.move(note, state.parent / "elsewhere")
    note.symlink_to(state.parent / "elsewhere")
    with pytest.raises(Exception, match="was not started here"):
        refuse_unasked(options, {}, "run-1", directory)


@pytest.mark.parametrize("name", ["trials.jsonl", "worker.log", "results.csv", "model", "engine-logs/a.log"])
def test_a_link_in_a_directory_is_not_followed(
    name: str, directory: Path, tmp_path: Path, said_by: Callable[..., str]
) -> None:
    target = tmp_path / "target"
    target.write_text("keep me\n")
    (directory / name).parent.mkdir(exist_ok=True)
    (directory / name).unlink(missing_ok=True)
    os.symlink(target, directory / name)
    assert f"{directory / name} is a link" in said_by("sweep", "--resume", str(directory), code=1)
    assert target.read_text() == "keep me\n"

"""The shell around the commands: help, completion, what it says about a wrong command line, and lost output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from kvplan.cli import COMMANDS, _plain_message, main

KVPLAN = [sys.executable, "-m", "kvplan"]


def test_bare_kvplan_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    bare = capsys.readouterr()
    assert main(["--help"]) == 0
    assert capsys.readouterr() == bare
    assert bare.err == ""


def test_commands_stand_in_sections_and_exist(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    text = capsys.readouterr().out
    sections = {
        "Plan:": ["estimate", "plan", "explain"],
        "Measure:": ["sweep", "merge", "profile", "bench", "calibrate", "report"],
        "Serve:": ["serve", "load", "top"],
        "Look up:": ["models", "gpus"],
    }
    for title, names in sections.items():
        rows = text.split(f"\n{title}\n")[1].split("\n\n")[0].splitlines()
        assert [row.split()[0] for row in rows if row[2] != " "] == names
    assert list(COMMANDS) == [name for names in sections.values() for name in names]
    for name in COMMANDS:
        assert callable(getattr(import_module(f"kvplan.commands.{name}"), name))


def test_no_summary_is_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert all(listing.summary in shown for listing in COMMANDS.values())
    assert "..." not in shown.replace("[ARGS]...", "")


def test_options_stand_in_panels_each_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--help"]) == 0
    text = capsys.readouterr().out
    titles = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles[0] == "Arguments:"
    assert titles[-1] == "Options:"
    assert {"Memory:", "Output:"} <= set(titles)
    assert len(titles) == len(set(titles))
    memory = text.split("Memory:\n")[1].split("\n\n")[0]
    assert "--gpu-memory-utilization" in memory
    assert all(text.count(f"  {option} ") == 1 for option in ("--ctx", "--gpu", "--block-size", "--json"))


@pytest.mark.parametrize("name", COMMANDS)
def test_options_take_values_not_pythons_types(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert "list[" not in text
    assert " range>" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_help_needs_none_of_the_large_packages() -> None:
    code = (
        "import sys; from kvplan.cli import main; main(['--help']); main(['estimate', '--help']);"
        "print(sorted({'torch', 'pandas', 'matplotlib', 'rich', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["deploy", "monitor", "estimat"])
def test_an_unknown_command_is_one_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "gpt2", "--port", "8000"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    first, hint = said.err.splitlines()
    assert first.startswith(f"error: unknown command '{name}'.")
    assert hint == "hint: kvplan --help lists the commands"
    assert ("Did you mean 'estimate'?" in first) == (name == "estimat")


def test_an_unexpected_argument_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "l4", "surplus"]) == 2
    expected = "error: unexpected argument 'surplus'\nhint: kvplan gpus --help lists the options\n"
    assert capsys.readouterr() == ("", expected)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("plan gpt2 --users 40k", "error: Invalid value for '--users': it must be a whole number."),
        ("plan gpt2 --budget cheap", "error: Invalid value for '--budget': it must be a number."),
        ("gpus --format xml", "error: Invalid value for '--format': 'xml' is not one of 'table', 'json', 'csv', 'md'."),
    ],
)
def test_a_wrong_value_is_named_in_plain_words(words: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert capsys.readouterr().err.splitlines()[0] == expected


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("models --json --format csv", "csv"),
        ("gpus --format md --json", "md"),
        ("estimate gpt2 --json --format csv", "csv"),
        ("plan gpt2 --users 1 --json --format compose", "compose"),
        ("bench --model gpt2 --json --format csv", "csv"),
    ],
)
def test_two_formats_at_once_are_refused(words: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        f"error: --json and --format {named} ask for two formats at once.\nhint: leave one of them out\n"
    )


def test_json_and_format_json_are_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "gpt2", "--json", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "kvplan.models/1"


def test_typers_words_for_a_value_are_not_shown() -> None:
    said = "Invalid value for '--port': Input should be less than or equal to 65535"
    assert _plain_message(said) == "Invalid value for '--port': it must be less than or equal to 65535."


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["estimate", "gpt2"], ["models", "--json"]])
def test_output_that_cannot_be_written_is_one_sentence(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*KVPLAN, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "error: the output could not be written: No space left on device\n")


ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_a_name_that_the_locale_cannot_write_is_escaped(tmp_path: Path, form: str) -> None:
    (tmp_path / "modèle").mkdir()
    config = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 100, "n_positions": 64}
    (tmp_path / "modèle" / "config.json").write_text(json.dumps(config))
    words = [*KVPLAN, "estimate", str(tmp_path / "modèle"), "--gpu", "l4", "--format", form]
    done = subprocess.run(words, env=os.environ | ASCII, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"mod\\" in done.stdout and done.stdout.isascii()


@pytest.mark.parametrize("words", [["estimate", "gpt2"], ["estimat"], ["gpus"]])
def test_lost_output_and_lost_errors_together_end_quietly(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*KVPLAN, *words], stdout=full, stderr=full, check=False)
    assert done.returncode in (1, 2)


def test_closed_output_is_one_sentence() -> None:
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *KVPLAN, "gpus"], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "error: standard output is closed\n")


def test_a_reader_that_leaves_is_no_failure() -> None:
    script = '("$@"; echo "$?" >&2) | head -1'
    done = subprocess.run(["sh", "-c", script, "sh", *KVPLAN, "models"], capture_output=True, text=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == "0\n"


def test_an_unreadable_file_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "absent")]) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.startswith("error: ")


def _completed(*words: str) -> list[str]:
    """What the shell would offer for the last of ``words``."""
    asked = {"_KVPLAN_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(KVPLAN, env=os.environ | asked, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_shell_completes_commands_and_their_options() -> None:
    assert _completed("kvplan", "es") == ["estimate"]
    assert _completed("kvplan", "estimate", "--tens") == ["--tensor-parallel-size"]
    assert "--slo" in _completed("kvplan", "plan", "gpt2", "--")

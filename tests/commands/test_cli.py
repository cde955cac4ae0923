"""The shell around the commands: help, completion, what it says about a wrong command line, and lost output."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from kvplan.catalog.devices.gpus import parse_gpu_count
from kvplan.cli import COMMANDS, INTERRUPTED, _plain_message, main
from kvplan.commands.plan import PlanFormat
from kvplan.commands.printing.render import OutputFormat
from kvplan.completion import _FORMATS, completed_value
from kvplan.planner.question.slo import parse_slo, split_slo

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
        "Plan:": ["estimate", "plan", "explain", "cache", "web"],
        "Measure:": ["sweep", "merge", "profile", "bench", "calibrate", "report", "doctor"],
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


def test_options_stand_in_panels_each_once(printed_by: Callable[..., str]) -> None:
    text = printed_by("estimate --help")
    titles = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles[0] == "Arguments:"
    assert titles[-1] == "Options:"
    assert {"Memory:", "Output:"} <= set(titles)
    assert len(titles) == len(set(titles))
    memory = text.split("Memory:\n")[1].split("\n\n")[0]
    assert "--gpu-memory-utilization" in memory
    assert all(text.count(f"  {option} ") == 1 for option in ("--ctx", "--gpu", "--block-size", "--json"))


@pytest.mark.parametrize("name", COMMANDS)
def test_options_take_values_not_pythons_types(name: str, printed_by: Callable[..., str]) -> None:
    text = printed_by(name, "--help")
    assert "list[" not in text
    assert " range>" not in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    "line", ["--help", "estimate --help", "estimate gpt2 --gpu l4 --ctx 1k", "plan gpt2 --users 4"]
)
def test_help_and_plans_need_none_of_the_large_packages(line: str) -> None:
    """Typer imports pydantic for values that have to be converted: words are taken as they are."""
    code = (
        f"import sys; from kvplan.cli import main; main({line.split()});"
        "print(sorted({'torch', 'pandas', 'matplotlib', 'rich', 'transformers', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_json_and_format_json_are_one(printed_by: Callable[..., str]) -> None:
    assert json.loads(printed_by("models gpt2 --json --format json"))["schema"] == "kvplan.models/1"


def test_typers_words_for_a_value_are_not_shown() -> None:
    said = "Invalid value for '--port': Input should be less than or equal to 65535"
    assert _plain_message(said) == "Invalid value for '--port': it must be less than or equal to 65535."


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["estimate", "gpt2"]])
def test_output_that_cannot_be_written_is_one_sentence(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*KVPLAN, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "error: the output could not be written: No space left on device\n")


ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_name_that_the_locale_cannot_write_is_escaped(tmp_path: Path, form: str) -> None:
    (tmp_path / "modèle").mkdir()
    config = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 100, "n_positions": 64}
    (tmp_path / "modèle" / "config.json").write_text(json.dumps(config))
    words = [*KVPLAN, "estimate", str(tmp_path / "modèle"), "--gpu", "l4", "--format", form]
    done = subprocess.run(words, env=os.environ | ASCII, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"mod\\" in done.stdout and done.stdout.isascii()


@pytest.mark.parametrize("words", [["estimat"], ["gpus"]])
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


def _completed(*words: str) -> list[str]:
    """What the shell would offer for the last of ``words``."""
    asked = {"_KVPLAN_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(KVPLAN, env=os.environ | asked, capture_output=True, text=True, check=True)
    return done.stdout.split()


def _value(*words: str, shell: str = "bash", action: str = "get-args") -> tuple[int | None, str]:
    """The exit code and the words that are offered for a value in this process; None where Typer is to answer."""
    asked = {"_KVPLAN_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": action}
    asked |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    asked |= {"_TYPER_COMPLETE_ARGS": " ".join(words)}
    printed = io.StringIO()
    with redirect_stdout(printed):
        code = completed_value(asked)
    return code, printed.getvalue()


def test_the_shell_completes_commands_and_their_options() -> None:
    assert _completed("kvplan", "es") == ["estimate"]
    assert _completed("kvplan", "estimate", "--tens") == ["--tensor-parallel-size"]
    assert "--slo" in _completed("kvplan", "plan", "gpt2", "--")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("estimate", "deepseek-v3"), {"deepseek-v3", "deepseek-v3.2"}),
        (("estimate", "Qwen/Qwen3-8"), {"Qwen/Qwen3-8B"}),
        (("plan", "gpt2", "--gpu", "h1"), {"h100-sxm", "h100-pcie", "h100-nvl"}),
        (("plan", "gpt2", "--gpu", "l4,8xh20"), {"l4,8xh200", "l4,8xh20"}),
        (("plan", "gpt2", "--gpu", "l4", "h20"), {"h200", "h20"}),
        (("plan", "gpt2", "--gpu", "=", "l40"), {"l40", "l40s"}),
        (("estimate", "gpt2", "--kv-cache-dtype", "f"), {"float16", "fp8", "fp8_e4m3"}),
        (("estimate", "gpt2", "--quantization", "fp8,a"), {"fp8,auto", "fp8,awq"}),
        (("plan", "gpt2", "--dtype", "b"), {"bfloat16"}),
        (("plan", "gpt2", "--engine", ""), {"vllm"}),
        (("plan", "gpt2", "--slo", "p95_t"), {"p95_ttft:", "p95_tpot:"}),
        (("cache", "trace.jsonl", "deepseek-v3"), {"deepseek-v3", "deepseek-v3.2"}),
        (("cache", "trace.jsonl", "gpt2", "--router", ""), {"round-robin", "prefix", "shared"}),
    ],
)
def test_the_shell_completes_values(words: tuple[str, ...], expected: set[str]) -> None:
    code, printed = _value("kvplan", *words)
    assert code == 0
    assert set(printed.split()) >= expected
    # bash has cut what stands before "=" off; each word that is offered continues what was typed
    assert all(word.casefold().startswith(words[-1].casefold()) for word in printed.split())


@pytest.mark.parametrize(
    "words", [("pl",), ("plan", "gpt2", "--gp"), ("cache", "tr"), ("plan", "--users", "4"), ("gpus", "l")]
)
def test_what_is_no_value_is_left_to_typer(words: tuple[str, ...]) -> None:
    assert _value("kvplan", *words) == (None, "")


def test_each_shell_is_answered_in_its_own_words() -> None:
    words = ("kvplan", "plan", "gpt2", "--gpu", "l40")
    assert _value(*words, shell="zsh") == (0, '_arguments \'*: :(("l40"\n"l40s"))\'\n')
    assert _value(*words, shell="fish") == (0, "l40\nl40s\n")
    assert _value(*words, shell="fish", action="is-args") == (0, "")
    assert _value(*words[:-1], "zzz", shell="fish", action="is-args") == (1, "")
    assert _value(*words[:-1], "zzz", shell="zsh") == (0, "_files\n")
    assert _value("kvplan", "plan", "gpt2", "--gpu=l40", shell="zsh")[1].count("--gpu=l40") == 2


def test_what_is_offered_is_taken() -> None:
    """Every word that completion offers of an option is a value of it."""
    assert _FORMATS["plan"] == tuple(each.value for each in PlanFormat)
    for command in ("estimate", "models", "gpus"):
        assert _FORMATS[command] == tuple(each.value for each in OutputFormat)
    for name in _value("kvplan", "plan", "gpt2", "--gpu", "")[1].split():
        assert parse_gpu_count(name).num_gpus >= 1
    for word in _value("kvplan", "plan", "gpt2", "--slo", "")[1].split():
        assert parse_slo(split_slo([f"{word}1"])).bounds(), word


def test_a_value_is_completed_without_the_command() -> None:
    asked = {"_KVPLAN_COMPLETE": "complete_bash", "COMP_WORDS": "kvplan\nplan\ngpt2\n--gpu\nh2", "COMP_CWORD": "4"}
    words = [KVPLAN[0], "-X", "importtime", *KVPLAN[1:]]
    done = subprocess.run(words, env=os.environ | asked, capture_output=True, text=True, check=True)
    assert done.stdout.split()[:3] == ["h200", "h20", "h20-141gb"]
    assert not re.search(r"kvplan\.(estimate|planner|commands\.plan\b)|pydantic|torch", done.stderr)


def test_an_interrupted_command_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(search: str | None) -> list[object]:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvplan.commands.models.known_models", interrupted)
    assert main(["models"]) == INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


def test_a_table_of_names_too_wide_for_one_line_has_no_part_of_names_alone() -> None:
    from kvplan.commands.printing.render import table_lines

    rows = [["n" * 30, "o/" + "i" * 45, "1"], ["m" * 30, "o/" + "j" * 45, "2"]]
    lines = list(table_lines(["name", "id", "count"], rows, text_columns=(0, 1), width=78, starts=(2,)))
    assert lines[0].split() == ["name", "id"]


def last_cells(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Those of the row's KV columns."""
    assert main(["models", name, "--format", "md"]) == 0
    return [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].split("|")[-3:-1]]


@pytest.mark.parametrize(
    ("name", "within", "past"),
    [
        ("zephyr", 32 * 2 * 8 * 128 * 2, "0"),
        ("gemma-3-1b", 26 * 2 * 256 * 2, f"{4 * 2 * 256 * 2:,}"),
        ("llama-3.1-8b", 32 * 2 * 8 * 128 * 2, ""),
    ],
)
def test_a_token_within_the_windows_counts_in_all_layers(
    name: str, within: int, past: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert last_cells(name, capsys) == [f"{within:,}", past]


def test_the_columns_are_explained_where_a_model_has_windows(printed_by: Callable[..., str]) -> None:
    assert "past windows: of one more" in printed_by("models zephyr")
    assert "of one more" not in printed_by("models llama-3.1-8b")


def test_json_has_both(answer_of: Callable[..., Any]) -> None:
    (row,) = answer_of("models gemma-3-1b")["models"]
    assert (row["kv_bytes_per_token"], row["kv_window_bytes_per_token"]) == (4096, 26624 - 4096)

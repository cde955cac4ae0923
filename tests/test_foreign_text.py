"""Text of others on a terminal: no order to it comes through, whichever command prints it."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_server import document, hostile
from metric_pages import vllm_page

from kvplan.cli import main
from kvplan.foreign_text import (
    GuardedStream,
    as_markdown,
    blanked,
    guarded_output,
    inert_cell,
    printable,
    unguarded,
)
from kvplan.runs.directory import TRIAL_SCHEMA
from kvplan.runs.rows import empty_row
from kvplan.runs.storage.store import csv_text

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\x7f\u2028\U000e0041"
ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, wide: 模型, accents: é, joined: \u200d", "plain, wide: 模型, accents: é, joined: \u200d"),
        ("\x1b[2J", "\\u001b[2J"),
        ("a\r\n\tb", "a\\r\\n\\tb"),
        ("\x9b\x7f", "\\u009b\\u007f"),
        ("\u202eabc", "\\u202eabc"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\udb40\\udc41"),
    ],
)
def test_foreign_text_is_written_as_json_would(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert len(blanked(text)) == len(text) and not ORDERS.search(blanked(text))
    if shown != text:
        assert json.loads(f'"{shown}"') == text


def test_a_guarded_stream_keeps_our_own_layout_and_nothing_else() -> None:
    inner = io.StringIO()
    print(f"a\t{EVIL}", "b", sep="\n", file=GuardedStream(inner))  # type: ignore[arg-type]
    assert inner.getvalue().startswith("a\t\\u001b]0;owned") and inner.getvalue().endswith("\nb\n")
    assert not ORDERS.search(inner.getvalue())


def test_output_is_guarded_within_a_command_only() -> None:
    before = sys.stdout, sys.stderr
    with guarded_output():
        assert isinstance(sys.stdout, GuardedStream) and unguarded(sys.stdout) is before[0]
    assert (sys.stdout, sys.stderr) == before


def _config(folder: Path, **changes: object) -> Path:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": 256,
        "max_position_embeddings": 512, "torch_dtype": "float16",
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize("words", [("--gpu", "h100"), ("--format", "md"), ("--format", "csv"), ("--json",)])
def test_a_models_name_gives_no_orders(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", str(_config(tmp_path / "\x1b[2J\u202em")), *words]) == 0
    _shows_no_orders(capsys)


@pytest.mark.parametrize("changes", [{"architectures": [EVIL]}, {"model_type": EVIL}, {"torch_dtype": EVIL}])
@pytest.mark.parametrize("command", ["estimate", "plan"])
def test_an_errors_words_give_no_orders(
    command: str, changes: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([command, str(_config(tmp_path / "m", **changes)), "--gpu", "h100"])
    assert len(_shows_no_orders(capsys).err.splitlines()) <= 3, "nor do its line feeds forge lines"


def test_a_log_gives_no_orders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text(
        f"INFO 01-01 00:00:00 [api_server.py:1] vLLM API server version 0.11.0\n"
        f"INFO 01-01 00:00:00 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='{EVIL}x'\n"
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {EVIL}\n"
    )
    main(["explain", str(log)])
    _shows_no_orders(capsys)


def test_a_server_gives_no_orders(capsys: pytest.CaptureFixture[str]) -> None:
    name = EVIL + "m\nerror: forged"
    answers = {
        "/v1/models": document({"data": [{"id": name, "root": name}]}),
        "/metrics": document(vllm_page(labels='engine="0",model_name="\x1b[2J\u202em"')),
        "/server_info?config_format=json": document({"version": EVIL}),
        "/v1/completions": document({"error": {"message": EVIL}}, 500),
    }
    with hostile(answers) as server:
        main(["top", "--once", "--interval", "0", server.url])
        assert "m" in _shows_no_orders(capsys).out
        assert main(["load", server.url, "--num-prompts", "1"]) == 1
        assert main(["load", server.url, "--model", "x"]) == 1
        assert "\nerror: forged" not in _shows_no_orders(capsys).err


def _shows_no_orders(capsys: pytest.CaptureFixture[str]) -> pytest.CaptureResult[str]:  # type: ignore[type-var]
    printed = capsys.readouterr()
    for text in printed:
        assert not ORDERS.search(text), repr(text)
        assert "Traceback" not in text
    return printed


@pytest.mark.parametrize("value", ["=1+1", "+1+1", "-1-1", "@SUM(A1)", "\tx", "\rx", "=HYPERLINK(1)", "'=x", "\uff1d1"])
def test_a_cell_that_a_spreadsheet_would_run_is_text(value: str) -> None:
    assert inert_cell(value) == f"'{value}"


@pytest.mark.parametrize("value", [-1, -0.5, None, True, "", "-1.5", "+3", "-inf", "gpt2", "'quoted'", "a=b", "1..8"])
def test_other_cells_stay_as_they_are(value: object) -> None:
    assert inert_cell(value) == value


def test_no_csv_has_a_formula(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], printed_by: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = empty_row() | {"trial_id": "t", "status": "ok", "model_id": "=HYPERLINK(1)", "pred_error_pct": -5.5}
    record = {"schema": TRIAL_SCHEMA, "row": row | {"=cmd": "+x"}, "series": None}
    (tmp_path / "trials.jsonl").write_text(json.dumps(record) + "\n")
    (read,) = csv.DictReader(io.StringIO(printed_by("report", str(tmp_path), "--format", "csv")))
    assert (read["model_id"], read["pred_error_pct"], read["'=cmd"]) == ("'=HYPERLINK(1)", "-5.5", "'+x")
    assert "'=HYPERLINK(1)" in csv_text([row])
    for words in ("md", "json", "csv"):
        (tmp_path / "trials.jsonl").write_text(json.dumps(record | {"row": row | {"model_id": EVIL}}) + "\n")
        assert main(["report", str(tmp_path), "--format", words]) == 0
        _shows_no_orders(capsys)
    model = _config(tmp_path / "=1+1")
    monkeypatch.chdir(tmp_path)
    read, *_ = csv.DictReader(io.StringIO(printed_by("estimate", model.name, "--format", "csv")))
    assert "'=1+1" in read.values() and "=1+1" not in read.values()


@pytest.mark.parametrize(
    ("text", "written"),
    [("a|b", "a\\|b"), ("a\\|b", "a\\\\\\|b"), ("a\n# b", "a # b"), ("`x`", "\\`x\\`"), ("<b>", "&lt;b>"),
     ("[x](http://y)", "\\[x\\](http://y)")],
)  # fmt: skip
def test_foreign_text_is_no_markdown(text: str, written: str) -> None:
    assert as_markdown(text) == written

"""The check of real clients, without them: what is missing is an error, and what is compared is what was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import check_clients
from clients.dashboards import read_dashboards
from clients.findings import Findings
from clients.page import page
from clients.perfetto import written_counters, written_slices


def test_a_client_that_is_missing_is_no_success() -> None:
    assert not Findings("curl", missing="it is not installed").is_right
    assert not Findings("curl", "8.0").is_right, "nothing was checked"
    tried = Findings("curl", "8.0")
    tried.equal("health", "200", "200")
    assert tried.is_right
    tried.missing = "the other half"
    assert not tried.is_right


def test_the_page_is_not_written_while_a_client_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Findings("curl", missing="it is not installed")]
    out = tmp_path / "clients.md"
    monkeypatch.setattr(check_clients, "run_checks", lambda *_: found)
    monkeypatch.setattr("sys.argv", ["check_clients.py", "--model", "model.gguf", "--out", str(out)])
    assert (check_clients.main(), out.exists()) == (1, False)
    found[0] = Findings("curl", "8.0")
    found[0].equal("health", "200", "200")
    assert (check_clients.main(), out.exists()) == (0, True)


def test_what_was_wrong_stands_in_the_page() -> None:
    found = Findings("curl", "8.0")
    found.equal("tokens by chunks | by usage", (23, 24), (24, 24))
    text = page([found], "SmolLM2", "--max-num-seqs 16")
    assert "| curl | 8.0 | failed: tokens by chunks | by usage |" in text
    assert r"| tokens by chunks \| by usage | (23, 24) instead of (24, 24) | **wrong** |" in text


def test_queries_of_a_dashboard_are_asked_with_their_variables_filled_in(tmp_path: Path) -> None:
    asked = 'rate(vllm:prompt_tokens_total{model_name="$model_name", job=~"${job:regex}"}[$__rate_interval])'
    drafts = "sum(vllm:spec_decode_num_drafts_total)"
    panels = [{"targets": [{"expr": asked}, {"expr": asked}]}, {"rows": [{"expr": drafts}]}]
    (tmp_path / "vllm.json").write_text(json.dumps({"panels": panels}))
    plain, draft = read_dashboards(tmp_path)["vllm.json"]
    assert plain.text == 'rate(vllm:prompt_tokens_total{model_name="smollm2", job=~".*"}[1m])'
    assert (plain.metrics, plain.is_of_absent_feature) == (("vllm:prompt_tokens_total",), False)
    assert draft.is_of_absent_feature


def test_a_folder_without_dashboards_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no dashboard"):
        read_dashboards(tmp_path)


def test_a_trace_is_counted_as_perfetto_counts_it() -> None:
    events = [
        {"ph": "M", "name": "process_name"},
        {"ph": "X", "name": "decode", "ts": 1.0, "dur": 2.0},
        {"ph": "X", "name": "decode", "ts": 4.0, "dur": 0.5},
        {"ph": "b", "name": "request-0", "ts": 1.0},
        {"ph": "e", "name": "request-0", "ts": 9.0},
        {"ph": "C", "name": "blocks", "args": {"used": 3, "free": 5}},
        {"ph": "C", "name": "blocks", "args": {"used": 4, "free": 4}},
    ]
    assert written_slices(events) == {"decode": (2, 2500.0), "request-0": (1, 8000.0)}
    assert written_counters(events) == {"blocks used": (2, 7.0), "blocks free": (2, 9.0)}

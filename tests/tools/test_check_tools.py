"""The scripts that check: their pages and tables say what was found, and small runs of each find what is there."""

from __future__ import annotations

import gzip
import json
import random
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from small_traces import write_trace

import behaviour
import check_clients
import check_fleet_plans
import clients.page
from check_quantization import check_case, check_profile
from clients.dashboards import read_dashboards
from clients.findings import Findings
from clients.perfetto import written_counters, written_slices
from fuzz.harness import Fault, Target, run_cases
from fuzz.mutations import mutate_bytes, mutate_json
from quantization_cases.models import MODELS, SmallModel, check_against_transformers
from rank_checks.killed import Death
from rank_checks.page import page, problems
from rank_checks.tokens import CASES, Row
from run_fuzz import TARGETS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ranks-check.md"


def test_the_page_has_every_grid_and_nothing_wrong() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for case in CASES:
        for ranks, stages in case.grids:
            assert f"\n| {case.name} | {ranks} | {stages} | " in text
    assert text.count("| `rank_died` |") == 2
    assert text.endswith("## Not as expected\n\nNothing.\n")


def test_a_different_token_and_a_late_row_are_problems() -> None:
    rows = [
        Row("gpt2", (2, 1), 72, 72, 100),
        Row("gpt2", (4, 1), 71, 72, 100, problem="1 of 72 tokens differ"),
        Row("gpt2", (3, 1), refusal="4 attention heads cannot be divided over 3 ranks."),
    ]
    died = "Rank 1 of 2 was ended by SIGKILL."
    deaths = [
        Death(2, "rank_died", died, 0.2, "ok"),
        Death(4, "rank_died", died, 10.5, "ok"),
        Death(8, "crash", died, 0.2, "ok"),
    ]
    wrong = [
        "- gpt2, 4 x 1: 1 of 72 tokens differ",
        "- killed, 4 ranks: the row took 10.5 s",
        "- killed, 8 ranks: the rows were crash and ok",
    ]
    assert problems(rows, deaths) == wrong
    text = page(rows, deaths, "2.13")
    assert text.endswith("\n".join(["## Not as expected", "", *wrong]) + "\n")
    assert "| gpt2 | 3 | 1 | refused: 4 attention heads cannot be divided over 3 ranks. |  |" in text


GENERATED_CASES = 400


def test_generated_checkpoints_are_sized_as_vllm_builds_them() -> None:
    outcomes = [check_case(seed) for seed in range(GENERATED_CASES)]
    sized = [outcome for outcome in outcomes if outcome.counted is not None]
    assert len(sized) > 0.8 * GENERATED_CASES
    assert {outcome.loader for outcome in sized} == {
        *("compressed-tensors", "awq", "gptq", "auto-round", "bitsandbytes", "modelopt", "fp8", "fbgemm_fp8"),
        *("mxfp4", "mxfp8", "experts_int8", "quark", "torchao"),
    }
    assert [outcome for outcome in sized if not outcome.agrees] == []


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_listed_models_are_those_of_transformers(model: SmallModel) -> None:
    listed, built = check_against_transformers(model)
    assert listed == built


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("qwen3-30b-a3b-fp8", "gemma-4-26b-a4b-nvfp4", "qwen3.6-35b-a3b-nvfp4", "nemotron-3-nano-30b-a3b-nvfp4"),
        *("gpt-oss-20b", "llama-3.3-70b-instruct-fp8-dynamic", "kimi-k2.5", "glm-5.1-nvfp4"),
    ],
)
def test_a_profile_is_sized_as_vllm_builds_it(name: str) -> None:
    """``--profiles`` counts the other ones."""
    outcome = check_profile(name)
    assert outcome.planned == outcome.counted


def test_a_small_trace_has_no_cheaper_fleet_among_a_dozen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path / "trace.jsonl", count=80, seconds=40.0, seed=7)
    words = ["llama-3.1-8b", str(path), "--slo", "p90_ttft:1500", "--gpu", "l4,l40s", "--max-gpus", "8"]
    assert check_fleet_plans.main([*words, "--window", "20s", "--count", "12"]) == 0
    out = capsys.readouterr().out
    assert "12 random fleets, 0 cheaper that keep the level" in out


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
    text = clients.page.page([found], "SmolLM2", "--max-num-seqs 16")
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


FUZZED_CASES = dict.fromkeys(TARGETS, 60) | {"config": 40, "bodies": 40, "run_directories": 30}
"""Fewer where each takes a tenth of a second: 20,000 of every target were tried (docs/reliability.md)."""


@pytest.mark.parametrize("name", TARGETS)
def test_no_case_is_at_fault(name: str) -> None:
    with import_module(f"fuzz.targets.{name}").open_target() as target:
        outcomes = run_cases(target, cases=FUZZED_CASES[name], seed=1)
    assert outcomes.num_faults == 0, outcomes.faults
    assert sum(outcomes.counts.values()) == FUZZED_CASES[name]


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


def _record(folder: Path, document: Any) -> Path:
    folder.mkdir()
    (folder / "explain.json.gz").write_bytes(gzip.compress(json.dumps(document).encode()))
    return folder


def test_every_difference_is_a_line_with_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = {"a": [1, {"b": 2.5}], "gone": None, "same": "text", "note": "2 of 3 blocks"}
    new = {"a": [1, {"b": 2.25}, 7], "same": "text", "note": "2 blocks (of 4)", "true": True}
    folders = [str(_record(tmp_path / name, document)) for name, document in (("old", old), ("new", new))]
    assert behaviour.main(["compare", *folders, "--only", "explain"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "explain/a/1/b: 2.5 -> 2.25",
        "explain/a/2: nothing -> 7",
        "explain/gone: null -> nothing",
        'explain/note: "2 of 3 blocks" -> "2 blocks (of 4)"',
        "explain/true: nothing -> true",
        "5 differences",
    ]


def test_a_reworded_text_with_the_same_numbers_can_be_let_pass(tmp_path: Path) -> None:
    old = _record(tmp_path / "old", {"note": "1,024 tokens in 2 blocks", "kind": 1})
    new = _record(tmp_path / "new", {"note": "room for 1,024 tokens: 2 blocks", "kind": True})
    assert behaviour.compare(old, new, ["explain"], numbers_only=True) == ["explain/kind: 1 -> true"]


def test_a_missing_section_is_a_difference(tmp_path: Path) -> None:
    old = _record(tmp_path / "old", {"note": 1})
    assert behaviour.compare(old, tmp_path, ["explain"]) == ['explain: {"note": 1} -> nothing']


def test_what_is_recorded_twice_is_equal(tmp_path: Path) -> None:
    for name in ("first", "second"):
        behaviour.record(tmp_path / name, ["explain", "plan"], every=4)  # all take most of a minute
    assert behaviour.main(["compare", str(tmp_path / "first"), str(tmp_path / "second"), "--only", "explain,plan"]) == 0
    plan = json.loads(gzip.decompress((tmp_path / "first" / "plan.json.gz").read_bytes()))
    assert {answer["exit_code"] for answer in plan.values()} == {0, 1}
    assert sum(len(answer["answer"]["deployments"]) for answer in plan.values()) > 5


def test_unknown_sections_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert behaviour.main(["record", str(tmp_path), "--only", "plan,everything"]) == 2
    assert capsys.readouterr().err.startswith("error: no section everything;")

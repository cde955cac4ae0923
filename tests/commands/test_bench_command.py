"""`kvplan bench` from end to end on a tiny model: every experiment, its JSON, its table, its errors."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_configs import llama_config

from kvplan import cli
from kvplan.bench import session
from kvplan.bench.experiments import _ON_SHORT_MODEL
from kvplan.bench.figures import Experiment, compare
from kvplan.bench.latency_experiments import drop_from_page_cache, measure_arrival
from kvplan.bench.memory_experiments import measure_sharing
from kvplan.bench.options import EXPERIMENTS, ON_ONE_LAYER
from kvplan.bench.serving import BenchRequest, serve_under_load
from kvplan.bench.speed_experiments import padded
from kvplan.units import GIB
from kvplan_engine import LLM

CONFIG: dict[str, Any] = llama_config(
    vocab_size=384, max_position_embeddings=1024, tie_word_embeddings=True, torch_dtype="float32", eos_token_id=0
)


@pytest.fixture(scope="module")
def config_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-llama") / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model this small is faster on one thread, and much faster so on a busy machine."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow
def test_json_of_all_experiments(config_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--model", str(config_path), "--quick", "--device", "cpu", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["schema"] == "kvplan.bench/1"
    assert [experiment["name"] for experiment in document["experiments"]] == list(EXPERIMENTS)
    for number, name in enumerate(EXPERIMENTS, start=1):
        assert f"[{number}/{len(EXPERIMENTS)}] {name}: " in captured.err
    figures = {
        (experiment["name"], figure["name"]): figure
        for experiment in document["experiments"]
        for figure in experiment["figures"]
    }
    for figure in figures.values():
        assert len(figure["baseline_samples"]) == len(figure["measured_samples"]) == 1
        assert figure["baseline"] == figure["baseline_samples"][0]
    # what does not depend on how fast this machine is
    waste = figures["reservation", "held memory without KV"]
    assert waste["measured"] < 3 < 60 < waste["baseline"]
    assert figures["reservation", "pool filled with KV"]["measured"] > 90
    assert figures["reservation", "sequences held"]["baseline"] == 8
    assert figures["sharing", "blocks that hold the prompt"]["cut_pct"] >= 85
    again = figures["swap", "tokens computed again"]
    assert again["baseline"] > 0 == again["measured"]
    notes = {experiment["name"]: experiment["notes"] for experiment in document["experiments"]}
    assert notes["scheduling"]
    loaded = re.search(r"(\d+) tokens were loaded from host memory and (\d+) from disk", notes["tiers"][0])
    assert loaded is not None
    assert 800 < int(loaded[1]) <= 896  # full blocks of the prefix, all but the few that are still in the pool
    assert int(loaded[2]) in (0, 896)  # in a model this small computing may be the cheaper way


@pytest.mark.parametrize(("num_tokens", "num_steps"), [(208, 1), (48, 5)], ids=["whole", "in chunks"])
def test_a_long_prompt_among_running_answers(monkeypatch: pytest.MonkeyPatch, num_tokens: int, num_steps: int) -> None:
    """Beside eight decoding sequences the prompt of 200 tokens takes one step, or five with room for 40 of it each."""
    llm = LLM(
        CONFIG,
        load_format="dummy",
        device="cpu",
        device_memory="512MiB",
        max_num_batched_tokens=num_tokens,
        max_num_seqs=9,
    )
    sizes: list[int] = []
    step = llm.engine.step

    def watched_step() -> Any:
        outputs = step()
        sizes.append(llm.engine.stats.num_scheduled_tokens)
        return outputs

    monkeypatch.setattr(llm.engine, "step", watched_step)
    running = [BenchRequest([1, 2, 3], 100) for _ in range(8)]
    arrival = measure_arrival(llm.engine, running, BenchRequest(list(range(200)), 1), num_steps=2)
    assert sizes == [24, 8] + [num_tokens] * num_steps
    assert arrival.stall_seconds > 0
    assert arrival.first_token_seconds > 0
    assert not llm.engine.has_unfinished_requests()


def test_formats(config_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One run of the command; what it measured is shown in the other format too."""
    outcomes: list[session.BenchOutcome] = []
    run = session.run_bench

    def run_once(plan: session.BenchPlan, on_start: Any, on_result: Any, on_notice: Any) -> session.BenchOutcome:
        if not outcomes:
            outcomes.append(run(plan, on_start, on_result, on_notice))
        else:
            for experiment in outcomes[0].experiments:
                on_result(experiment)
        return outcomes[0]

    def lines_of(output_format: str) -> list[str]:
        options = ["--quick", "--device", "cpu", "--only", "sharing", "--format", output_format]
        assert cli.main(["bench", "--model", str(config_path), *options]) == 0
        return capsys.readouterr().out.splitlines()

    monkeypatch.setattr(session, "run_bench", run_once)
    (row,) = csv.DictReader(lines_of("csv"))
    assert (row["experiment"], row["baseline_value"], row["measured_value"]) == ("sharing", "456", "57")
    markdown = lines_of("md")
    assert markdown[0] == "### n=8 samples of one prompt"
    assert markdown[2] == "|  | 8 requests | n=8 | gain |"
    table = lines_of("table")
    assert table[0] == "n=8 samples of one prompt"
    (cells,) = [line for line in table if line.strip().startswith("blocks that hold")]
    assert cells.split("blocks  ")[-1].split() == ["456", "57", "8.00", "x", "(-87.5", "%)"]
    assert any("one round" in line for line in table)


def test_files_can_be_dropped_from_the_page_cache(tmp_path: Path) -> None:
    (tmp_path / "key").mkdir()
    file = tmp_path / "key" / "block.kv"
    file.write_bytes(b"x" * 4096)
    drop_from_page_cache(tmp_path)
    assert file.read_bytes() == b"x" * 4096


def test_a_model_that_the_device_cannot_hold_is_refused_before_it_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--only", "prefix"]):
        assert (
            cli.main(["bench", "--model", "llama-3.1-70b", "--device", "cpu", "--device-memory", "1GiB", *words]) == 1
        )
        error = capsys.readouterr().err
        assert "has 131.42 GiB of weights, and the device 1.00 GiB of memory" in error
        assert "hint: use a smaller model, or --only reservation or sharing" in error


def test_experiments_on_one_layer_run_whatever_the_size() -> None:
    assert tuple(_ON_SHORT_MODEL) == ON_ONE_LAYER
    wanted = {"device": "cpu", "device_memory": GIB, "dtype": "auto", "num_rounds": 1, "is_quick": True, "seed": 0}
    plan = session.make_plan("llama-3.1-70b", only=ON_ONE_LAYER, **wanted)  # type: ignore[arg-type]
    assert plan.order.experiments == ON_ONE_LAYER


@pytest.mark.slow
def test_a_model_that_is_too_short_for_the_workload_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG | {"max_position_embeddings": 512}), encoding="utf-8")
    assert cli.main(["bench", "--model", str(path), "--quick", "--device", "cpu", "--only", "prefix"]) == 1
    error = capsys.readouterr().err
    assert "max_model_len" in error
    assert "hint: " in error
    assert "Traceback" not in error


def test_sharing_saves_what_the_arithmetic_says() -> None:
    """8 x 7 blocks apart; together 6 full blocks and one partly filled one, which nobody has written to yet."""
    llm = LLM(
        CONFIG,
        load_format="dummy",
        device="cpu",
        device_memory="512MiB",
        max_num_batched_tokens=800,
        max_num_seqs=8,
        enable_prefix_caching=False,
    )
    prompt = np.random.default_rng(0).integers(0, 384, 100).tolist()
    assert measure_sharing(llm.engine, prompt, 8) == (7, 56)
    assert not llm.engine.has_unfinished_requests()


def test_ratios_are_those_of_neighbours() -> None:
    """A machine that gets slower half-way disturbs both medians, and no ratio."""
    figure = compare("speed", "tokens/s", [10, 100, 10], [20, 200, 20], higher_is_better=True)
    assert (figure.baseline, figure.measured, figure.ratio, figure.cut_pct) == (10, 20, 2, None)
    figure = compare("time", "ms", [10, 100], [1, 10], higher_is_better=False)
    assert figure.ratio == 10
    assert figure.cut_pct == pytest.approx(90)
    assert compare("tokens", "", [5], [0], higher_is_better=False).ratio is None


def test_static_batches_are_padded_to_their_longest() -> None:
    requests = [BenchRequest([1], length) for length in (3, 9, 4, 2, 7)]
    assert [request.num_output_tokens for request in padded(requests, 2)] == [9, 9, 4, 4, 7]


@pytest.mark.parametrize("ahead", [False, True])
def test_under_load_as_many_prompts_are_computed_as_answers_completed(ahead: bool) -> None:
    """Of three static batches of 4 the time of two is measured: one batch's prompts less before, one's more after."""
    llm = LLM(
        CONFIG,
        load_format="dummy",
        device="cpu",
        device_memory="512MiB",
        max_num_batched_tokens=64,
        max_num_seqs=4,
        scheduling="static",
        async_scheduling=ahead,
    )
    requests = [BenchRequest([1, 2, 3], length) for length in (5, 2, 9, 3, 4, 4, 1, 2, 8, 8, 8, 8)]
    assert serve_under_load(llm.engine, requests).num_output_tokens == sum((5, 2, 9, 3, 4, 4, 1, 2))
    assert not llm.engine.has_unfinished_requests()


def test_experiments_survive_json() -> None:
    figure = compare("a", "ms", [2.0, 4.0], [1.0, 1.0], higher_is_better=False)
    experiment = Experiment("n", "t", "b", "m", "w", (figure,), ("note",), 1.5)
    assert Experiment.from_json(json.loads(json.dumps(experiment.as_json()))) == experiment

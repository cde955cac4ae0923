"""The speeds of an estimate: percentiles with intervals, what steps consist of, and the picture."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import cache
from pathlib import Path

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.commands.printing.estimate_parts import print_speeds
from kvplan.commands.printing.queues import server_text
from kvplan.commands.printing.render import table_lines
from kvplan.errors import KvplanError
from kvplan.estimate.answer import EstimateAnswer, EstimateRequest, make_estimate
from kvplan.estimate.document import speed_document
from kvplan.estimate.picture import estimates_figure
from kvplan.estimate.speed.device_speed import ANSWER_TOKENS, PROMPT_TOKENS, DeploymentSpeed, RequestLengths
from kvplan.estimate.speed.steps.host import NO_HOST, HostWork
from kvplan.estimate.speed.steps.step_terms import StepLoad
from kvplan.planner.answer.notes import explained_steps
from kvplan.planner.question.request import ParallelSizes, PlanRequest
from kvplan.planner.search.plan import make_plan
from kvplan.settings import ServingSettings

SPEC = resolve_model("llama-3.1-8b")
FIGURES = ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "output_throughput")


@cache
def answered(gpu: str = "h100-sxm", context: int = 8192, max_num_seqs: int | None = 24) -> EstimateAnswer:
    settings = ServingSettings(max_num_seqs=max_num_seqs)
    return make_estimate(SPEC, EstimateRequest(context, (find_gpu(gpu),), settings=settings), load_measured())


def speed_of(answer: EstimateAnswer) -> DeploymentSpeed:
    (found,) = answer.speeds
    assert found is not None
    return found


@pytest.mark.parametrize("gpu", ["h100-sxm", "a10"])
def test_figures_have_intervals(gpu: str) -> None:
    """On a GPU with a profile of its kernels and on one by its data sheet."""
    document = speed_document(speed_of(answered(gpu)))
    alone, full = document["queueing_alone"], document["queueing_full"]
    assert isinstance(alone, dict) and isinstance(full, dict)
    for name in FIGURES:
        for low, middle, high in (alone[name], full[name]):
            assert 0 < low < high and middle > 0
        assert full[name][1] > alone[name][1]
    assert full["ttft_p99_ms"][1] > full["ttft_p50_ms"][1]
    assert full["intervals"]["ttft"]["num_rows"] >= 20


def test_eager_steps_take_their_launches() -> None:
    """32 layers of 0.57 ms, in each token of a lone request; large steps hide them. The answer says so."""
    settings = ServingSettings(max_num_seqs=24, enforce_eager=True)
    eager = make_estimate(SPEC, EstimateRequest(8192, (find_gpu("h100-sxm"),), settings=settings), load_measured())
    usual, found = (speed_document(speed_of(each))["queueing_alone"] for each in (answered(), eager))
    assert isinstance(usual, dict) and isinstance(found, dict)
    assert found["tpot_p50_ms"][1] == pytest.approx(32 * 0.57, rel=0.001)
    assert usual["tpot_p50_ms"][1] < 8
    assert any("--enforce-eager: a step takes at least" in each for each in eager.assumptions)


@pytest.mark.parametrize(("model", "gpu"), [("gemma-3-27b", "h100-sxm"), ("falcon-mamba-7b", "l4"), ("gpt2", "l4")])
@pytest.mark.parametrize("engine", ["vllm", "kvplan"])
def test_as_many_at_once_as_fit_whatever_the_context(model: str, gpu: str, engine: str) -> None:
    """Windows and states take as much of a pool for 640 tokens, however long the longest sequence may be."""
    each = PROMPT_TOKENS + ANSWER_TOKENS
    choice = EngineChoice(engine, "latest")
    at_most = [
        make_estimate(resolve_model(model), EstimateRequest(context, (find_gpu(gpu),), choice), load_measured())
        for context in (each, 1024 if model == "gpt2" else 32768)
    ]
    short, long = (answer.deployments[0] for answer in at_most)
    shown = speed_of(at_most[1])
    assert shown.num_users == pytest.approx(min(short.max_concurrency, long.settings.max_num_seqs), rel=0.07)
    assert shown.rules.pool_tokens < (shown.num_users + 1) * each or shown.num_users == long.settings.max_num_seqs


def test_estimate_and_plan_have_the_same_steps() -> None:
    """A replica with as many users of such requests takes as long, and its steps consist of the same."""
    gpus = (find_gpu("h100-sxm"),)
    sizes = ParallelSizes(tensor=(1,), pipeline=(1,), data=(1,))
    asked = PlanRequest(
        num_users=24,
        input_tokens=PROMPT_TOKENS,
        output_tokens=ANSWER_TOKENS,
        average_context=PROMPT_TOKENS + ANSWER_TOKENS // 2,
        longest_context=8192,
        gpus=gpus,
        sizes=sizes,
        max_gpus=1,
    )
    plan = make_plan(SPEC, asked, load_measured())
    best = next(each for each in plan.deployments if each.weights_name == "bfloat16")
    _, decode, mixed = speed_of(answered()).explained_steps()
    for planned, estimated in zip(explained_steps(best, plan.workload), (decode, mixed), strict=True):
        assert planned.name == estimated.name
        assert planned.seconds == pytest.approx(estimated.seconds, rel=1e-6)
        assert astuple(planned.terms) == pytest.approx(astuple(estimated.terms), rel=1e-6)


def test_a_step_on_flash_attention_2_is_as_long_as_its_parts() -> None:
    """Decoding sequences are padded to tiles beside a prompt, in the whole and in the term of attention."""
    mixed = speed_of(answered("a100-80gb-sxm", max_num_seqs=256)).explained_steps()[-1]
    assert mixed.terms.attention > mixed.terms.kv_cache
    assert mixed.seconds <= sum(astuple(mixed.terms))


def test_what_the_host_adds_is_a_term_of_a_step() -> None:
    speed = speed_of(answered())
    load = StepLoad.decoding(1, 100).with_prompt(16)
    hosted, bare = speed.model, replace(speed.model, engine_host=NO_HOST)
    assert bare.step_terms(load).host == 0
    assert hosted.step_terms(load).host == pytest.approx(hosted.step_seconds(load) - bare.step_seconds(load))
    busy = replace(speed.model, engine_host=HostWork(step_seconds=0.5))
    assert busy.step_terms(load).host == pytest.approx(0.5)


def test_text_shows_percentiles_and_terms(capsys: pytest.CaptureFixture[str]) -> None:
    print_speeds(answered(), explain=True)
    shown = capsys.readouterr().out
    assert "h100-sxm, prompts of 512, answers of 128 (kernels measured on h100-sxm" in shown
    assert "intervals hold 9 in 10 of up to" in shown
    assert "    alone: TTFT p50 " in shown and "    24 at once: TTFT p50 " in shown
    assert "launches ms" in shown and "host ms" in shown and "24 decode, a prompt of 512" in shown
    assert "aiconfigurator-core" in shown
    print_speeds(answered(), explain=False)
    short = capsys.readouterr().out
    assert "launches ms" not in short and "aiconfigurator-core" not in short
    title, head, _, alone, full, origin, _ = short.strip().splitlines()
    assert title.startswith("Speeds of prompts of 512 and answers of 128 tokens; intervals hold 9 in 10 of up to")
    assert head.split()[0] == "GPU" and head.endswith("  at once")
    assert (alone.split()[0], alone.split()[-1]) == ("h100-sxm", "1")
    assert (full.split()[0], full.split()[-1]) == ("h100-sxm", "24")
    assert re.search(r"\d \([\d.]+-[\d.]+\)", full)
    assert origin == "  h100-sxm: kernels measured on h100-sxm with vLLM 0.24.0 in bfloat16."


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_of_speeds_fits_a_terminal(width: int) -> None:
    """Every GPU that is shown where none is named, in one table: no part of it is cut off."""
    lines = list(table_lines(*speed_table(), text_columns=(0,), width=width, starts=()))
    assert max(map(len, lines)) <= width
    assert len(lines) == 2 + len(speed_table()[1]) == 14


def speed_table() -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The widest cells of an estimate of an 8B model on the GPUs that are shown where none is named."""
    row = ("a100-80gb-sxm", "593 (473-1,356)", "150 (113-197)", "8,455 (6,099-10,004)", "1,024")
    return ("GPU", "TTFT p50 ms", "TPOT p50 ms", "tokens/s", "at once"), [row] * 12


def test_requests_longer_than_the_context_are_not_played(capsys: pytest.CaptureFixture[str]) -> None:
    answer = answered(context=600)
    document = speed_document(speed_of(answer))
    assert document["queueing_alone"] is None and document["queueing_full"] is None
    print_speeds(answer, explain=False)
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if line.startswith("  h100-sxm  ") and line.endswith(" 1"))
    assert " to " in row and "(" not in row
    assert "  h100-sxm, 1 at once: ranges without queues.\n" in shown


def test_more_requests_than_a_server_can_take_are_not_played(capsys: pytest.CaptureFixture[str]) -> None:
    """8 H200 would answer hundreds of such requests a second, and vLLM's server spends 10 ms on each."""
    settings = ServingSettings(tensor_parallel_size=8)
    answer = make_estimate(SPEC, EstimateRequest(8192, (find_gpu("h200"),), settings=settings), load_measured())
    speed = speed_of(answer)
    document = speed_document(speed)
    assert document["server_share_full"] == pytest.approx(speed.model.server_share(speed.num_users), abs=1e-3)
    assert speed.full.requests_per_second.high * speed.model.front_end.seconds(ANSWER_TOKENS) == pytest.approx(1.0)
    assert speed.queues(speed.num_users) is None and speed.queues(1) is not None
    print_speeds(answer, explain=False)
    shown = capsys.readouterr().out
    rows = [line for line in shown.splitlines() if line.startswith("  8 x h200  ")]
    assert "(" in rows[0] and "(" not in rows[1] and " at once: ranges without queues." in shown
    assert " at once: tokens/s are what vLLM's API server can stream" in shown


def test_lines_count_the_gpus_of_an_instance(printed_by: Callable[..., str]) -> None:
    words = "estimate llama-3.1-8b --ctx 8k --gpu h100-sxm 2xh100-sxm --max-num-seqs 24 --explain"
    shown = printed_by(words)
    for name in ("h100-sxm", "2 x h100-sxm"):
        for after in (": 79.19 x 0.92 = ", ": 9 of 10 start-ups have ", ", prompts of 8,064, "):
            assert f"\n  {name}{after}" in shown
        assert f"step of {name} " in shown


def test_the_picture_has_a_bar_for_each_number_of_sequences() -> None:
    figure = estimates_figure([answered(), answered("a10")])
    first, second = figure.axes
    assert (first.get_title(), second.get_title()) == ("h100-sxm", "a10")
    assert [label.get_text() for label in first.get_xticklabels()] == ["1", "4", "16", "24"]
    tops = [bar.get_y() + bar.get_height() for bar in first.containers[-1]]
    steps = speed_of(answered()).decode_steps()
    assert tops == pytest.approx([1000 * sum(astuple(step.terms)) for step in steps])


def test_titles_stay_above_their_own_panels() -> None:
    eight = ServingSettings(tensor_parallel_size=8)
    answers = [
        make_estimate(resolve_model(model), EstimateRequest(8192, (find_gpu(gpu),), settings=eight))
        for model in ("llama-3.1-8b", "deepseek-v3.2", "gemma-3-27b")
        for gpu in ("h200", "b200")
    ]
    figure = estimates_figure(answers)
    figure.draw_without_rendering()
    drawn = [axes for axes in figure.axes if axes.get_visible()]
    for axes in drawn:
        assert axes.title.get_window_extent().width <= axes.get_window_extent().width
    assert drawn[2].get_title() == "DeepSeek-V3.2, 8 x h200\nfp8 8-bit, block 128 x 128 weights, bfloat16 KV"
    (legend,) = figure.legends
    lines = {round(text.get_window_extent().y0) for text in legend.get_texts()}
    assert len(lines) == 1


def test_nothing_that_fits_is_nothing_to_draw() -> None:
    large = make_estimate(resolve_model("llama-3.1-70b"), EstimateRequest(8192, (find_gpu("l4"),)))
    with pytest.raises(KvplanError, match="no steps to draw"):
        estimates_figure([large])


def test_the_command_draws(tmp_path: Path, printed_by: Callable[..., str], said_by: Callable[..., str]) -> None:
    target = tmp_path / "steps.png"
    assert (
        json.loads(
            printed_by("estimate", "gpt2", "--gpu", "l4", "--max-num-seqs", "8", "--json", "--plot", str(target))
        )["schema"]
        == "kvplan.estimate/1"
    )
    assert target.read_bytes().startswith(b"\x89PNG")
    for name, reason in (
        ("no/steps.png", "No such file or directory.\nhint: name a file in a directory that is there"),
        ("steps.txt", "Pictures cannot be written as .txt: "),
        ("steps", "does not say which kind of picture it is to be."),
    ):
        assert reason in said_by("estimate", "gpt2", "--gpu", "l4", "--plot", str(tmp_path / name), code=1)
    assert sorted(tmp_path.iterdir()) == [target]


def test_a_server_that_keeps_pace_is_not_said_to_bound_by_1_0_times() -> None:
    assert server_text(0.5, 1) is None
    close, beyond = server_text(1.04, 1), server_text(1.06, 1)
    assert close is not None and "would work for 100 % of the time" in close and "times as many" not in close
    assert beyond is not None and "1.1 times as many" in beyond


def test_speeds_are_of_the_context_that_is_asked_for(printed_by):
    """They were of prompts of 512 tokens, whatever --ctx said."""
    words = ["estimate", "llama-3.1-8b", "--gpu", "h100", "--json"]
    speeds = {}
    for context in (None, 16_384, 65_536):
        (deployment,) = json.loads(printed_by(*words, *([] if context is None else ["--ctx", str(context)])))[
            "deployments"
        ]
        speeds[context] = deployment["performance"]
        if context is not None:
            assert speeds[context]["input_tokens"] + speeds[context]["output_tokens"] == context
            assert speeds[context]["num_users"] == int(deployment["max_concurrency"])
            assert speeds[context]["queueing_alone"] is not None  # it is played, though it fills the context
    assert (speeds[None]["input_tokens"], speeds[None]["output_tokens"]) == (512, 128)
    # each step reads the KV cache of 64k tokens: 8 GiB at 3.35 TB/s are 2.6 ms, and kernels reach less
    more = speeds[65_536]["queueing_alone"]["tpot_p50_ms"][1] - speeds[None]["queueing_alone"]["tpot_p50_ms"][1]
    assert 8 * 2**30 / 3.35e12 < more / 1000 < 2 * 8 * 2**30 / 3.35e12
    assert speeds[65_536]["ttft_ms_alone"][0] > 4 * speeds[16_384]["ttft_ms_alone"][0]


def test_a_short_context_has_room_for_an_answer():
    assert RequestLengths.filling(64) == RequestLengths(32, 32, is_fixed=True)
    assert RequestLengths.filling(1) == RequestLengths(1, 1, is_fixed=True)
    assert RequestLengths.filling(4096) == RequestLengths(3968, 128, is_fixed=True)


@pytest.mark.parametrize(("gpus", "has_table"), [("gb10", False), ("h100,gb10", True)])
def test_a_gpu_whose_speeds_were_not_measured_is_named(
    gpus: str, has_table: bool, printed_by: Callable[..., str]
) -> None:
    out = printed_by("estimate", "llama-3.1-8b", "--ctx", "8k", "--gpu", gpus)
    assert ("Speeds of prompts" in out) is has_table
    assert "No speeds of gb10: none were measured there; --explain has those of data sheets." in out

"""A trace's fleet: windows judged by hand, the search against every fleet there is, and what is told of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from small_traces import write_trace

import kvplan
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.published_errors import ErrorInterval
from kvplan.commands.printing.fleets import growth_sentence, print_fleet
from kvplan.errors import KvplanError, UsageError
from kvplan.fleet.replicas.fleet import FleetPlay, FleetSample
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.requests import FleetRequest, requests_of_file
from kvplan.fleet.windows import windows_of
from kvplan.planner.answer.fleet_document import fleet_document
from kvplan.planner.answer.fleet_page import draw_fleet, fleet_page
from kvplan.planner.choices.basis import PlanBasis
from kvplan.planner.choices.deployment import DeploymentChoice
from kvplan.planner.fleets.answering import FleetAnswer, Listener, plan_fleet
from kvplan.planner.fleets.demand import could_begin, least_replicas
from kvplan.planner.fleets.judging import Bar, hopeless
from kvplan.planner.fleets.playing import FleetPlan, Player
from kvplan.planner.fleets.setups import FleetChoice, fleet_choice
from kvplan.planner.question.asking import plan_request
from kvplan.planner.question.request import PlanRequest, complete
from kvplan.planner.question.slo import Goal, parse_slo
from kvplan.planner.search.plan import formats_asked
from kvplan.settings import ServingSettings

SPEC = resolve_model("llama-3.1-8b")
NO_ERROR = {"ttft": ErrorInterval(1.0, 1.0, 1, 1, 1), "tpot": ErrorInterval(1.0, 1.0, 1, 1, 1), "throughput": None}


def seen(number: int, sent: float, ttft: float, tpot: float = 0.01, tokens: int = 11) -> Seen:
    request = FleetRequest(number, sent, 100, tokens)
    return Seen(request, 0, sent, sent + ttft, sent + ttft + tpot * (tokens - 1), num_hit_tokens=30)


def bar(text: str, confidence: float = 0.5, share: float = 1.0) -> Bar:
    return Bar(Goal.of(parse_slo(text.split()), confidence), dict(NO_ERROR), share)  # type: ignore[arg-type]


def question(path: Path, slo: str = "p90_ttft:1500 p90_tpot:40", **options: object) -> PlanRequest:
    asked: dict[str, object] = {"gpu": ["l4", "l40s"], "max_gpus": 16, "window": "20s"} | options
    return plan_request(
        EngineChoice("vllm"),
        ServingSettings(),
        workload=path,
        slo=[slo],
        plays_trace=True,
        **asked,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("traces") / "small.jsonl")


@pytest.fixture(scope="module")
def answer(trace: Path) -> FleetAnswer:
    return plan_fleet(SPEC, question(trace), load_measured(None))


def timeless(found: object) -> str:
    """An answer without the seconds that its search took."""
    text = found if isinstance(found, str) else json.dumps(found, indent=2)
    return re.sub(r'played in \d+ s|"search_seconds": [\d.]+', "", text)


# ---- windows and verdicts


def test_a_window_has_the_requests_that_were_sent_in_it() -> None:
    play = FleetPlay([seen(0, 1.0, 0.2), seen(1, 9.9, 3.0), seen(2, 10.0, 0.4)])
    play.samples = [FleetSample(5.0, 2, 4, 6, 0.3, 0, 0), FleetSample(10.0, 2, 1, 2, 0.6, 0, 0)]
    first, second = windows_of(play, 10.0)
    assert (first.start, first.num_requests, first.requests_per_second) == (0.0, 2, 0.2)
    assert first.ttft.p99 == pytest.approx(0.2 + 0.99 * 2.8) and first.hit_rate == pytest.approx(0.3)
    assert (first.most_waiting, first.most_kv_usage, first.mean_running) == (4, 0.3, 6)
    assert (second.start, second.num_requests, second.most_kv_usage) == (10.0, 1, 0.6)


def test_every_window_has_to_keep_the_level_or_a_share_of_them() -> None:
    play = FleetPlay([seen(each, 10.0 * each, 0.2 if each else 5.0) for each in range(4)])
    verdict = bar("p99_ttft:1000").judge(play, 10.0)
    assert not verdict.keeps and verdict.num_broken == 1 and verdict.deciding.window.start == 0.0
    assert bar("p99_ttft:1000", share=0.75).judge(play, 10.0).keeps
    assert not bar("p99_ttft:1000", share=0.76).judge(play, 10.0).keeps


def test_a_level_is_kept_as_surely_as_the_published_interval_says() -> None:
    intervals = {"ttft": ErrorInterval(0.5, 2.0, 9, 9, 9), "tpot": None, "throughput": None}
    level = Goal.of(parse_slo(["ttft:1000"]), 0.75)
    wide = Bar(level, intervals)  # type: ignore[arg-type]
    (bound,) = level.slo.bounds()
    # 75 % is 0.674 standard deviations, an end of the interval 1.645: what is needed is 1000 / 2 ** 0.41
    assert wide.needed(bound) == pytest.approx(2 ** (-0.67449 / 1.64485), rel=1e-4)
    kept = wide.judge(FleetPlay([seen(0, 0.0, 0.75)]), 10.0).deciding
    assert kept.keeps and kept.confidence == pytest.approx(0.753, abs=2e-3)
    assert not wide.judge(FleetPlay([seen(0, 0.0, 0.76)]), 10.0).keeps


@pytest.mark.parametrize(("word", "number"), [("p99_ttft", 2), ("p90_ttft", 11), ("p50_ttft", 51)])
def test_a_percentile_is_given_up_as_soon_as_it_is_lost(word: str, number: int) -> None:
    """Of 101 requests the 99th percentile is the second slowest."""
    requests = [FleetRequest(each, each / 20, 100, 11) for each in range(101)]
    ended = [seen(each, each / 20, 2.0) for each in range(number)]
    is_lost = hopeless(bar(f"{word}:1000"), requests, 10.0)
    assert not is_lost(ended[:-1])
    assert is_lost(ended)
    others = [seen(each, each / 20, 0.1) for each in range(number - 1, 101)]
    assert bar(f"{word}:1000").judge(FleetPlay(ended[:-1] + others), 10.0).keeps
    assert not bar(f"{word}:1000").judge(FleetPlay(ended + others[1:]), 10.0).keeps


def test_an_average_is_given_up_where_the_ended_take_all_the_time_there_is() -> None:
    requests = [FleetRequest(each, 0.0, 100, 11) for each in range(4)]
    is_lost = hopeless(bar("ttft:1000"), requests, 10.0)
    assert not is_lost([seen(0, 0.0, 3.9)])
    assert is_lost([seen(0, 0.0, 3.9), seen(1, 0.0, 0.2)])


def test_windows_that_are_not_judged_lose_nothing() -> None:
    requests = [FleetRequest(each, 10.0 * each, 100, 11) for each in range(2)]
    is_lost = hopeless(bar("p99_ttft:1000"), requests, 10.0, frozenset([1]))
    assert not is_lost([seen(0, 0.0, 5.0)])
    assert is_lost([seen(0, 0.0, 5.0), seen(1, 10.0, 5.0)])


# ---- the search


def test_no_fleet_of_the_chosen_deployment_is_smaller(answer: FleetAnswer) -> None:
    best = answer.best
    assert best is not None and best.is_whole and best.keeps
    goal = answer.plan.request.goal
    player, hasty = Player(answer.demand, goal, 1.0), Player(answer.demand, goal, 1.0)
    for count in range(1, best.plan.replicas):
        smaller = replace(best.plan, replicas=count)
        assert not player.whole(smaller, gives_up=False).keeps
        assert not hasty.whole(smaller).keeps, "giving up changes no verdict"
    again = player.whole(FleetPlan(best.plan.found, best.plan.replicas, best.plan.router), gives_up=False)
    assert again.verdict.confidence == best.verdict.confidence
    assert hasty.whole(best.plan).keeps


def test_what_is_left_out_in_closed_form_keeps_nothing(answer: FleetAnswer) -> None:
    best, demand = answer.best, answer.demand
    assert best is not None
    goal = answer.plan.request.goal
    assert could_begin(best.plan.found, demand.busy, best.verdict.bar)
    least = least_replicas(best.plan.found, demand.busy, goal)
    assert least is not None and least <= best.plan.replicas
    hasty = replace(best.verdict.bar, goal=Goal.of(parse_slo(["p50_ttft:1"]), 0.5))
    assert not could_begin(best.plan.found, demand.busy, hasty)


def test_growth_ends_where_the_level_does(answer: FleetAnswer) -> None:
    growth, best = answer.growth, answer.best
    assert growth is not None and best is not None and not growth.is_capped
    player = Player(answer.demand, answer.plan.request.goal, 1.0)
    kept, lost = (
        player.play(best.plan, answer.demand.busiest.faster(each), each, gives_up=False)
        for each in (growth.factor, growth.factor_beyond)
    )
    assert kept.keeps and not lost.keeps and growth.factor_beyond / growth.factor < 1.021
    assert growth.breaks is not None and growth.resource in ("kv", "seats", "prefill", "decode")


def test_a_looser_level_costs_no_more(trace: Path, answer: FleetAnswer) -> None:
    loose = plan_fleet(SPEC, question(trace, "p90_ttft:6000 p90_tpot:80"), load_measured(None))
    dear, cheap = (each.plan.deployments[0].usd_per_hour for each in (answer, loose))
    assert dear is not None and cheap is not None and cheap <= dear


def test_ctrl_c_keeps_the_best_so_far(trace: Path, answer: FleetAnswer) -> None:
    def press(count: int) -> None:
        if count == 12:
            raise KeyboardInterrupt

    told: list[object] = []
    found = plan_fleet(SPEC, question(trace), load_measured(None), Listener(press, told.append))
    assert found.was_interrupted and found.best is told[-1] and found.best is not None and found.best.keeps
    assert found.growth is None
    assert fleet_document(found)["fleet"]["was_interrupted"] is True


# ---- what is told


def test_the_document_has_the_fleet_as_its_first_deployment(answer: FleetAnswer) -> None:
    document = json.loads(json.dumps(fleet_document(answer)))
    first, fleet = document["deployments"][0], document["fleet"]
    assert document["schema"] == "kvplan.plan/1"
    assert first["replicas"] == fleet["best"]["replicas"] and first["gpu"] == fleet["best"]["gpu"]
    assert first["cost"]["usd_per_hour"] == pytest.approx(fleet["best"]["usd_per_hour"])
    assert first["performance"]["confidence"] == fleet["best"]["confidence"] >= 0.75
    assert sum(each["num_requests"] for each in fleet["windows"]) == fleet["num_requests"] == 120
    assert all(each["keeps"] for each in fleet["windows"])
    said = " ".join(document["assumptions"])
    assert "counts none of it" not in said and "the busiest 5 min" not in said
    assert "Requests are sent when the file says" in said


def test_head_room_of_a_coarse_clock_says_what_it_leaves_out(answer: FleetAnswer, trace: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    rounded = [json.dumps(row | {"timestamp": row["timestamp"] // 5000 * 5000}) for row in rows]
    coarse = tmp_path / "coarse.jsonl"
    coarse.write_text("\n".join(rounded), encoding="utf-8")
    said = growth_sentence(replace(answer, trace=replace(answer.trace, path=coarse)))
    assert "its ticks closer but no fuller" in said and "ticks" not in growth_sentence(answer)


def test_many_gpus_without_a_fleet_are_counted(answer: FleetAnswer, capsys: pytest.CaptureFixture[str]) -> None:
    for count, said in ((2, "not on gpu-0, gpu-1: no fleet"), (7, "not on 7 other GPUs: no fleet")):
        print_fleet(replace(answer, dearer=tuple(f"gpu-{number}" for number in range(count))), "table")
        assert said in capsys.readouterr().out


def test_the_page_asks_no_other_host(answer: FleetAnswer) -> None:
    page = fleet_page(answer, ["Rent <this>."])
    assert "Rent &lt;this&gt;." in page and page.count("<svg") >= 6
    assert "http" not in page.replace("http://localhost", "") and "<script" not in page
    assert "nan" not in page and "inf" not in page.replace("infer", "")


def test_the_picture_has_the_charts_of_the_page(answer: FleetAnswer, tmp_path: Path) -> None:
    draw_fleet(answer, tmp_path / "fleet.png")
    assert (tmp_path / "fleet.png").read_bytes()[:4] == b"\x89PNG"


@pytest.fixture
def words(trace: Path) -> Iterator[list[str]]:
    yield ["plan", "llama-3.1-8b", "--workload", str(trace), "--window", "20s", "--gpu", "l40s", "--max-gpus", "16"]


def test_the_command_answers_first(words: list[str], tmp_path: Path, ran: Callable[..., tuple[int, str, str]]) -> None:
    page = tmp_path / "fleet.html"
    code, out, err = ran(*words, "--slo", "p90_ttft:2000 p90_tpot:60", "--router", "round_robin", "--html", str(page))
    assert code == 0 and out.startswith("Rent ") and "120 requests over" in out.splitlines()[0]
    assert "in every window of 20 s" in out and "Headroom: " in out and "best so far: " in err
    assert "behind each router" not in out  # one was named
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_nothing_that_keeps_the_level_is_said_with_what_came_nearest(
    words: list[str], ran: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = ran(*words[:-1], "1", "--slo", "p90_ttft:400 p90_tpot:60")
    assert code == 1 and not out and "No fleet of at most 1 GPU keeps p90 TTFT within 400 ms" in err and "hint: " in err
    assert err.startswith("note: "), "what was made of the file may be why"


def test_prompts_that_are_too_slow_alone_are_why_nothing_keeps_the_level(
    words: list[str], ran: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = ran(*words, "--slo", "p90_ttft:20", "--json")
    document = json.loads(out)
    assert code == 1 and re.search(r"Even with nobody beside them prompts take \d+ ms \(p90_ttft\)", err)
    assert document["fleet"]["best"] is None and document["deployments"] == []
    assert document["left_out"] == {"l40s": "no fleet there keeps the level"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--users", "4", "--window", "5m"], "--window needs a --workload with times"),
        (["--request-rate", "1", "--router", "dynamo"], "--router needs a --workload with times"),
        (["--window", "1s"], "--window must be at least 10 s, got 1 s"),
        (["--share-of-windows", "120%"], "--share-of-windows must be more than 0 and at most 1"),
        (["--router", "nginx"], "Unknown --router 'nginx'"),
        (["--worst-case"], "--worst-case cannot be used with a trace"),
    ],
)
def test_options_that_cannot_be(
    options: list[str], sentence: str, trace: Path, ran: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = ran("plan", "llama-3.1-8b", "--workload", str(trace), "--gpu", "l40s", *options)
    assert code == 2 and not out and sentence in err and "hint: " in err


def test_the_same_file_in_python_is_the_commands_answer(trace: Path, ran: Callable[..., tuple[int, str, str]]) -> None:
    """``kvplan.plan`` reduced it to its busiest minutes, and played nothing."""
    options = {"gpu": "l40s", "max_gpus": 4, "window": "20s", "router": "round-robin"}
    options |= {"slo": "p90_ttft:2000 p90_tpot:60", "quantization": "published", "kv_cache_dtype": "auto"}
    plan = kvplan.plan("llama-3.1-8b", workload=trace, **options)  # type: ignore[arg-type]
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    code, out, _ = ran("plan", "llama-3.1-8b", "--workload", str(trace), *words)
    assert isinstance(plan, kvplan.TracePlan) and code == 0
    assert timeless(str(plan)) == timeless(out)
    assert timeless(plan.to_dict()) == timeless(fleet_document(plan.fleet))
    best = plan.fleet.best
    assert best is not None and plan.windows == best.verdict.windows and plan.best.replicas == plan.replicas
    assert (plan.router, plan.hit_rate, plan.confidence) == ("round-robin", best.hit_rate, best.verdict.confidence)
    assert list(plan.to_frame()["gpu"]) == ["l40s"]
    averages = kvplan.plan("llama-3.1-8b", workload=trace, users=4, gpu="l40s")
    assert "fleet" not in averages.to_dict()


def test_a_fleet_that_nothing_keeps_is_an_answer_in_python(trace: Path) -> None:
    plan = kvplan.plan("llama-3.1-8b", workload=trace, gpu="l4", max_gpus=1, slo="p90_ttft:1 p90_tpot:40")
    assert not plan.deployments and "No fleet of at most 1 GPU keeps" in (plan.problem or "")
    assert str(plan).startswith(f"{plan.problem}\nhint: ")
    with pytest.raises(KvplanError, match="No fleet"):
        _ = plan.best


def test_without_a_level_a_readable_speed_is_kept(trace: Path) -> None:
    request = replace(question(trace, gpu=["l40s"]), slo=parse_slo([]))
    found = plan_fleet(SPEC, request, load_measured(None))
    assert found.best is not None and math.isfinite(found.best.verdict.deciding.ratio)
    assert found.plan.deployments[0].verdict.goal.is_asked is False


def test_a_router_is_refused_by_name(trace: Path) -> None:
    with pytest.raises(UsageError, match="Unknown --router"):
        question(trace, router="nobody")


# ---- files that cannot be played


def rows(times: list[float]) -> str:
    return "".join(
        json.dumps({"timestamp": time, "input_length": 600, "output_length": 20, "hash_ids": [place, place]}) + "\n"
        for place, time in enumerate(times)
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "contains no request"),
        (rows([0.001 * each for each in range(60)]), "60 requests .* come within 0.059 s, too short"),
        (rows([8e6 * each for each in range(300)]), "300 requests .* come over 27.7 days, more than the 14 days"),
        (rows([0, 400]).replace("600", "-600"), "its input_length is -600"),
        (rows([0, 400]) + rows([800])[:30], "Line 3 .* is malformed"),
    ],
)
def test_a_trace_that_cannot_be_played_is_said_in_a_sentence(
    text: str, sentence: str, tmp_path: Path, ran: Callable[..., tuple[int, str, str]]
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text, encoding="utf-8")
    code, out, err = ran("plan", "llama-3.1-8b", "--workload", str(path), "--gpu", "l40s")
    assert code == 1 and not out and err.count("error: ") == 1 and "hint: " in err
    assert re.search(sentence, err.replace("\n  ", " ")), err


def test_a_trace_of_too_many_requests_is_refused_before_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_trace(tmp_path / "long.jsonl", count=50)
    monkeypatch.setattr("kvplan.planner.question.trace.MOST_REQUESTS", 40)
    with pytest.raises(KvplanError, match="has 50 requests, more than the 40 that are played") as error:
        question(path)
    assert "--sample 40" in str(error.value.hint)
    assert question(path, sample=40).trace is not None


def test_times_before_zero_and_out_of_order_are_counted_from_the_first(tmp_path: Path, trace: Path) -> None:
    lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    path = tmp_path / "moved.jsonl"
    moved = [json.dumps(line | {"timestamp": line["timestamp"] - 30_000}) for line in reversed(lines)]
    path.write_text("\n".join(moved) + "\n", encoding="utf-8")
    kept, others = requests_of_file(trace), requests_of_file(path)
    assert [each.sent for each in others] == [each.sent for each in kept]
    assert [each.num_prompt_tokens for each in others] == [each.num_prompt_tokens for each in kept]


# ---- formats


@pytest.fixture(scope="module")
def of_formats(trace: Path) -> FleetAnswer:
    return plan_fleet(
        SPEC, question(trace, slo="p90_ttft:3000 p90_tpot:60", gpu=["l4"], router="round-robin"), load_measured(None)
    )


def test_other_formats_stand_beside_a_fleet_where_they_keep_the_level_for_less(
    of_formats: FleetAnswer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the formats asked for were tried."""
    best = of_formats.best
    assert best is not None and best.plan.found.choice.formats == ("bfloat16", "auto")
    assert of_formats.formats
    cost = best.plan.replicas * best.plan.found.num_gpus
    for each in of_formats.formats:
        plan = each.played.plan
        assert each.played.keeps and each.played.is_whole and each.caveats
        assert plan.found.choice.formats != ("bfloat16", "auto") and plan.replicas * plan.found.num_gpus < cost
    document = fleet_document(of_formats)
    assert [each["gpu"] for each in document["alternatives"]] == ["l4"] * len(of_formats.formats)
    print_fleet(of_formats, "html")
    assert re.search(r"In other formats \d+ x \(.*l4.*\) keeps it at \$[\d.]+/h\.", capsys.readouterr().out)
    named = [(each["weights"], each["kv_cache_dtype"]) for each in document["fleet"]["other_formats"]]
    assert named == [each.played.plan.found.choice.formats for each in of_formats.formats]


def test_formats_that_are_asked_for_are_played_beside_each_other(trace: Path) -> None:
    asked = question(
        trace,
        slo="p90_ttft:3000 p90_tpot:60",
        gpu=["l4"],
        router="round-robin",
        quantization=["published", "fp8"],
        kv_cache_dtype=["auto"],
    )
    found = plan_fleet(SPEC, asked, load_measured(None))
    assert found.best is not None and found.best.plan.found.choice.formats == ("fp8", "auto")
    assert {each.plan.found.choice.formats for each in found.others} <= {("bfloat16", "auto")}
    assert not found.formats


def test_formats_that_keep_what_the_published_one_cannot_are_a_hint(trace: Path) -> None:
    found = plan_fleet(SPEC, question(trace, gpu=["l4"]), load_measured(None))
    assert found.best is None and len(found.formats) == 1
    with pytest.raises(KvplanError, match="No fleet") as error:
        print_fleet(found, "table")
    assert re.search(r"--kv-cache-dtype\): \d+ x \(.*l4.*, fp8\) keeps it; or raise", error.value.hint or "")


# ---- pools


@pytest.mark.parametrize(
    ("model", "groups"),
    [
        ("gemma-3-27b", [("sliding", 16, 1024, 6), ("full", 16, None, 1)]),
        ("llama-4-scout", [("chunked", 16, 8192, 3), ("full", 16, None, 1)]),
        ("deepseek-v3", [("full", 16, None, 1)]),
    ],
)
def test_a_pool_has_the_groups_of_the_release(model: str, groups: list[tuple[object, ...]]) -> None:
    found = a_choice(model)
    assert [(each.kind, each.block_size, each.window_tokens, each.count) for each in found.setup.pool.groups] == groups
    assert found.setup.pool.num_blocks == found.prediction.num_blocks - 1  # vLLM's null block


def test_states_take_a_block_of_all_tokens_that_groups_agree_on_where_prefixes_are_cached() -> None:
    cached = a_choice("qwen3.5-27b").setup.pool
    sizes = {each.kind: each.block_size for each in cached.groups}
    assert sizes["state"] == sizes["full"] > 16 and cached.caches_prefixes
    plain = a_choice("qwen3.5-27b", ServingSettings(enable_prefix_caching=False)).setup.pool
    assert {each.kind for each in plain.groups} == {"fixed", "full"} and not plain.caches_prefixes


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "exports"),
    [
        ("qwen3.5-27b", "h200", "vllm@0.33.0", True),  # FlashInfer's delta rule on Hopper and Blackwell
        ("qwen3.5-27b", "b200", "vllm@0.33.0", True),
        ("qwen3.5-27b", "a100", "vllm@0.33.0", False),
        ("qwen3.5-27b", "h200", "vllm@0.32.0", False),
        ("nemotron-h-56b", "a100", "vllm@0.32.0", True),  # Mamba 2's kernels anywhere
        ("llama-3.1-8b", "h200", "vllm@0.33.0", False),
    ],
)
def test_prompts_are_not_cut_where_kernels_write_states_on_their_way(
    model: str, gpu: str, engine: str, exports: bool
) -> None:
    """gdn/qwen_gdn_linear_attn.py and mamba_mixer2.py, get_kv_cache_spec, of 0.32.0 and 0.33.0."""
    assert a_choice(model, gpu=gpu, engine=engine).setup.pool.exports_states is exports


def a_choice(
    model: str, settings: ServingSettings = ServingSettings(), *, gpu: str = "h200", engine: str = "vllm"
) -> FleetChoice:
    """On as many GPUs of one node as it can be divided over."""
    spec = resolve_model(model)
    request = plan_request(
        EngineChoice.parse(engine), settings, request_rate=1.0, input_len="4k", output_len="200", gpu=[gpu], max_gpus=8
    )
    basis = PlanBasis(request, complete(request, spec), load_measured(None))
    formats, _ = formats_asked(spec, request)
    (profile,) = basis.gpus
    layout = basis.layouts(formats[0].weights, profile, across_nodes=False)[-1]
    found = fleet_choice(basis, DeploymentChoice(profile, layout, formats[0].weights, formats[0].kv_cache_dtype))
    assert found is not None, basis.refusals
    return found


def test_plays_on_several_cores_are_those_on_one(answer: FleetAnswer, monkeypatch: pytest.MonkeyPatch) -> None:
    best, goal = answer.best, answer.plan.request.goal
    assert best is not None
    plans = [replace(best.plan, replicas=count) for count in (1, 2, 3)]
    found = []
    for cores in (1, 3):
        monkeypatch.setattr("kvplan.planner.fleets.playing.num_cores", lambda cores=cores: cores)
        player = Player(answer.demand, goal, 1.0)
        player.prepare(plans, whole_play=True)
        assert player.num_played == 3
        found.append([player.busiest(each, whole_play=True) for each in plans])
        assert player.num_played == 3
    for one, other in zip(*found, strict=True):
        assert [each.window for each in one.verdict.windows] == [each.window for each in other.verdict.windows]
        assert one.play.samples == other.play.samples and one.figures == other.figures

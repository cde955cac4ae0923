"""What a plan offers where the load is not served as asked, and beside an answer: each way works when followed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.estimate.speed.latency import Range
from kvplan.planner.answer.ranges import within
from kvplan.planner.launch.engines import launch_commands
from kvplan.planner.question.request import PlanRequest
from kvplan.planner.question.slo import Slo, parse_slo
from kvplan.planner.search.fixes import cheapest_fix
from kvplan.planner.search.plan import make_plan
from kvplan.settings import ServingSettings

LLAMA = resolve_model("llama-3.1-8b")


def request(*gpus: str, num_users: int = 10, **settings: object) -> PlanRequest:
    asked = {"num_users": num_users, "average_context": 8192, "longest_context": 8192, **settings}
    return PlanRequest(gpus=tuple(map(find_gpu, gpus)), **asked)  # type: ignore[arg-type]


def test_two_bounds_that_nothing_keeps_are_left_out() -> None:
    asked = request("l4", slo=parse_slo(["ttft:1", "tpot:1"]))
    fix = cheapest_fix(make_plan(LLAMA, asked))
    assert fix is not None and fix.sentence == "leave --slo out"
    followed = make_plan(LLAMA, replace(asked, slo=Slo()))
    assert followed.deployments[0].name == fix.deployment.name


def test_what_has_no_price_is_not_said_to_cost_less() -> None:
    found = make_plan(LLAMA, request("l40s", "h800", num_users=40))
    best = found.deployments[0]
    assert best.usd_per_hour is not None and best.num_gpus > 1, "one H800 would be fewer GPUs"
    costs = [each.deployment.usd_per_hour for each in found.alternatives]
    assert costs and all(cost is not None and cost < best.usd_per_hour for cost in costs)


def test_a_balancer_of_very_many_servers_is_left_to_the_document(printed_by: Callable[..., str]) -> None:
    printed = printed_by("plan llama-3.1-8b --users 2000 --ctx-avg 8k --gpu l4 --max-gpus 400")
    assert "a balancer that knows all of them (--json has its command)" in printed
    assert max(map(len, printed.splitlines())) < 500


def test_weights_that_only_some_engines_quantize_while_loading_are_a_checkpoint_for_the_others() -> None:
    best = make_plan(LLAMA, request("l40s", quantizations=("fp8",))).deployments[0]
    commands = launch_commands(best, LLAMA.id)
    assert "<an fp8 build of meta-llama/Llama-3.1-8B>" in commands["tensorrt-llm"]
    assert all("--quantization fp8" in commands[name] and LLAMA.id in commands[name] for name in ("vllm", "sglang"))


def test_the_gguf_file_of_a_model_in_mxfp4_is_in_that() -> None:
    best = make_plan(resolve_model("gpt-oss-120b"), request("h100", num_users=4)).deployments[0]
    assert "gpt-oss-120b-MXFP4.gguf" in launch_commands(best, "openai/gpt-oss-120b")["llama.cpp"]


def test_a_budget_that_another_format_keeps_is_not_raised(said_by: Callable[..., str]) -> None:
    words = shlex.split("plan llama-3.1-8b --users 10 --ctx-avg 8k --gpu rtx-4090 --budget 0.35")
    error = said_by(*words, code=1)
    assert "Nothing within $0.35 per hour serves this load in the formats asked for." in error
    assert main([*words, *error.partition("change the format (")[2].partition(")")[0].split()]) == 0


def test_without_a_service_level_the_speed_has_its_own_confidence(printed_by: Callable[..., str]) -> None:
    words = "plan gpt-oss-120b --users 36 --ctx-avg 16k --gpu mi300x --max-gpus 1 --json"
    served = json.loads(printed_by(words))["deployments"][0]
    assert served["performance"]["confidence"] == 1.0, "there is room for all"
    low, middle, high = served["queueing"]["tpot_p50_ms"]
    assert low < 100 < high
    printed = printed_by(words.removesuffix(" --json"))
    sure = int(printed.partition("10 tokens/s to each (")[2].partition(" % sure)")[0])
    assert sure < 75 and (sure > 50) == (middle < 100)
    assert "Servers refuse longer ones" in printed, "--ctx-max was not given"


def test_seats_for_all_users_are_not_less_sure_than_more_of_them() -> None:
    sure = [
        make_plan(LLAMA, request("h100", num_users=40, max_gpus=1, settings=ServingSettings(max_num_seqs=seats)))
        .deployments[0]
        .verdict.confidence
        for seats in (40, 48, 64)
    ]
    assert sure == [1.0, 1.0, 1.0], "the pool holds 54 sequences"


def test_an_engine_that_is_too_slow_is_not_called_a_busy_server(said_by: Callable[..., str]) -> None:
    asked = "plan llama-3.1-8b --input-len 1k --output-len 300 --gpu h100 --max-gpus 40 --request-rate"
    sentence = re.search(
        r"It answers (\S+) to (\S+) requests/s; 1,000 are needed", said_by(*shlex.split(asked), "1000", code=1)
    )
    assert sentence is not None, "each of 40 servers works 17.75 ms on a request, and has time for 2,253 of them"
    low, high = (float(end.replace(",", "")) for end in sentence.groups())
    assert 500 < low < 1000 < high < 2000
    assert "hint: raise --max-gpus to 1" in said_by(*shlex.split(asked), "2000", code=1), (
        "more than a hundred of them serve it"
    )


def test_a_load_that_no_single_change_serves_names_what_to_loosen(said_by: Callable[..., str]) -> None:
    error = said_by("plan qwen2.5-72b-instruct --users 20 --ctx-avg 8k --gpu t4 --budget 0.5 --slo tpot:50", code=1)
    assert (
        "hint: no single change was found to serve it: loosen several of --gpu, --max-gpus, --budget, --slo, or"
        in error
    )


def test_a_middle_is_not_rounded_beyond_its_interval() -> None:
    """Of 844.8 tokens/s that are asked for at most."""
    assert within(844.8, Range(709.6, 844.8, most=844.8)) == "844 (710-844)"
    assert within(0.0508, Range(0.04, 0.07), 1000) == "51 (40-70)"

"""Seats for fewer than come at once, steps without graphs, weights in the host's memory, and slots of adapters."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from kvplan.catalog.devices.gpu_profile import REACHED_SHARE, host_bytes_per_second
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.errors import KvplanError
from kvplan.estimate.adapters import vllm_slot_bytes
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.queueing.steps import OffloadedSteps
from kvplan.estimate.speed.simulation.interface import GroupClock
from kvplan.estimate.speed.steps.work import model_work
from kvplan.planner.choices.basis import PlanBasis, predict
from kvplan.planner.choices.candidate import Candidate
from kvplan.planner.choices.deployment import DeploymentChoice
from kvplan.planner.choices.load import serve_users
from kvplan.planner.choices.sizing import candidate, least_that_answer
from kvplan.planner.launch.engines import launch_commands
from kvplan.planner.likeness import AskedPlan, likened
from kvplan.planner.question.asking import plan_request
from kvplan.planner.question.request import complete
from kvplan.planner.search.plan import PlanAnswer, formats_asked, make_plan
from kvplan.planner.search.ranking import fewest
from kvplan.settings import ServingSettings

MEASURED = load_measured()


def plan(settings: ServingSettings = ServingSettings(), **options: Any) -> PlanAnswer:
    asked = plan_request(EngineChoice("vllm"), settings, **{"gpu": ["rtx-4090"], **options})
    return make_plan(resolve_model("llama-3.1-8b"), asked, MEASURED)


def test_fewer_seats_keep_a_bound_that_a_seat_for_each_breaks() -> None:
    """Two cards write fast enough to eight of ten, and the others wait; three cards to all of them."""
    found = plan(users=10, slo=["tpot:40"])
    best = found.deployments[0]
    assert best.verdict.meets and best.waits and best.num_gpus == 2
    seats, middle = best.choice.max_num_seqs, best.served.middle
    assert seats is not None and middle is not None and best.served.num_running == seats < 10
    assert f"--max-num-seqs {seats} " in launch_commands(best, "m")["vllm"]
    assert best.queues is not None and best.queues.figures.max_running == seats
    assert best.queues.figures.ttft.mean > 3 * best.speed_model.steady(seats, "middle").ttft_seconds
    # of the same cards, more seats break it
    assert not any(each.verdict.meets and not each.waits and each.num_gpus == 2 for each in found.deployments)


def test_without_a_service_level_nobody_waits() -> None:
    for users in (10, 60):
        assert not any(each.waits for each in plan(users=users, ctx_avg="4k").deployments)


def test_a_bound_on_tpot_alone_makes_nobody_wait_for_long() -> None:
    """A few seats write fast however many wait: what is readable begins within ten seconds."""
    assert not plan(users=200, slo=["tpot:40"], max_gpus=2).deployments
    bounded = plan(users=10, slo=["tpot:40", "ttft:1000"])
    assert not bounded.deployments[0].waits and bounded.deployments[0].num_gpus > 2


def test_seats_that_somebody_asks_for_make_the_others_wait() -> None:
    found = plan(ServingSettings(max_num_seqs=4), users=6, ctx_avg="4k")
    best = found.deployments[0]
    assert best.waits and best.served.num_running == 4
    assert best.prediction.settings.serving.max_num_seqs == 4


def test_who_waits_waits_for_the_answers_of_those_before() -> None:
    """Little's law: all of them in the time that they take, at the rate of those who run."""
    model = plan(users=8, ctx_avg="4k").deployments[0].speed_model
    alone, waiting = serve_users(model, 4).middle, serve_users(model, 10, 4).middle
    assert alone is not None and waiting is not None
    assert waiting.requests_per_second == pytest.approx(alone.requests_per_second)
    assert waiting.tpot_seconds == alone.tpot_seconds
    assert waiting.e2el_seconds == pytest.approx(10 / alone.requests_per_second)
    speed = serve_users(model, 10, 4).speed
    assert speed.ttft_seconds.low < waiting.ttft_seconds < speed.ttft_seconds.high


def test_closed_form_of_waiting_agrees_with_its_play() -> None:
    best = plan(users=10, slo=["tpot:40"]).deployments[0]
    assert best.queues is not None and best.served.middle is not None
    assert best.queues.figures.ttft.mean == pytest.approx(best.served.middle.ttft_seconds, rel=0.25)
    assert best.queues.figures.e2el.mean == pytest.approx(best.served.middle.e2el_seconds, rel=0.1)


def test_graphs_are_left_out_where_only_their_memory_holds_the_load(printed_by: Callable[..., str]) -> None:
    """Llama-3.1-8B in bfloat16 on 24 GB: 8 users of 4,096 tokens with graphs, and 10 without."""
    counts: dict[str, Any] = {"gpu": ["rtx-4090"], "max_gpus": 1, "ctx_avg": "4k"}
    with_graphs, without = (plan(users=users, **counts).deployments[0] for users in (8, 10))
    assert not with_graphs.choice.enforce_eager and without.choice.enforce_eager and without.verdict.meets
    assert without.capacity.average_sequences >= 10
    printed = printed_by("plan llama-3.1-8b --users 10 --ctx-avg 4k --gpu rtx-4090 --max-gpus 1")
    assert " --enforce-eager" in printed and "Graphs: left out (--enforce-eager)" in printed
    assert not plan(users=12, **counts).deployments


def test_users_who_think_wait_for_seats_too() -> None:
    """Of 30 users who read for five seconds ten or so have a request on each of two pairs of cards: too many."""
    best = plan(users=30, think_time="5s", slo=["tpot:40"]).deployments[0]
    assert best.verdict.meets and best.waits and best.num_gpus == 4
    seats, middle = best.choice.max_num_seqs, best.served.middle
    assert seats is not None and middle is not None and best.queues is not None
    assert best.queues.figures.max_running == seats == best.served.num_running < best.served.num_users
    assert best.queues.figures.ttft.mean == pytest.approx(middle.ttft_seconds, rel=0.25)
    assert best.queues.figures.e2el.mean == pytest.approx(middle.e2el_seconds, rel=0.1)
    # by the interactive response time law
    assert best.served.num_users == pytest.approx(15 * middle.e2el_seconds / (middle.e2el_seconds + 5), rel=0.05)


def test_seats_of_a_running_deployment_make_the_others_wait() -> None:
    command = "vllm serve llama-3.1-8b --max-num-seqs 32 --max-model-len 4096"
    options = {"users": 48, "gpu": ["h100"]}
    kept, _ = likened(AskedPlan("llama-3.1-8b", ServingSettings(), options), command)
    best = make_plan(resolve_model("llama-3.1-8b"), kept.request(), MEASURED).deployments[0]
    assert best.waits and best.num_gpus == 1 and best.served.num_running == 32


def _may_keep(basis: PlanBasis, choice: DeploymentChoice, replicas: int) -> bool:
    budgets = (choice.for_all(tokens) for tokens in (None, *basis.other_step_tokens(choice)))
    found = (candidate(basis, each, replicas) for each in budgets)
    return any(isinstance(each, Candidate) and each.may_keep(basis.request.goal) for each in found)


def test_what_is_too_few_replicas_by_throughput_keeps_no_goal() -> None:
    """A bound from below, which says something where reading prompts takes most of the time."""
    spec = resolve_model("llama-3.1-8b")
    options: dict[str, Any] = {"ctx_avg": "4k", "slo": ["ttft:2000 tpot:50"], "gpu": ["h100", "l40s", "mi300x"]}
    for more in ({"users": 200}, {"users": 300, "think_time": "10s"}):
        request = plan_request(EngineChoice("vllm"), ServingSettings(), max_gpus=64, **options, **more)
        basis = PlanBasis(request, complete(request, spec), MEASURED)
        pair = formats_asked(spec, request)[0][0]
        for gpu in basis.gpus:
            choice = DeploymentChoice(gpu, ParallelLayout(), pair.weights, pair.kv_cache_dtype)
            least = least_that_answer(basis, choice)
            needed = fewest(64, partial(_may_keep, basis, choice))
            assert needed is not None and needed / 4 < least <= needed, (gpu.id, least, needed)


@pytest.mark.parametrize(("model", "tried"), [("gemma-4-26b-a4b", (8192, 4096, 16384)), ("gemma-4-e4b", None)])
def test_no_step_is_tried_that_holds_no_video_of_gemma_4(model: str, tried: tuple[int, ...] | None) -> None:
    """vLLM starts no server with less: "Chunked MM input disabled but max_tokens_per_mm_item is larger"."""
    spec = resolve_model(model)
    request = plan_request(EngineChoice("vllm"), ServingSettings(), users=8, gpu=["h100"])
    basis, pair = PlanBasis(request, complete(request, spec), MEASURED), formats_asked(spec, request)[0][0]
    choice = DeploymentChoice(basis.gpus[0], ParallelLayout(), pair.weights, pair.kv_cache_dtype)
    assert basis.step_budgets(choice) == (tried or (8192, 2048, 4096, 16384))
    short = plan_request(
        EngineChoice("vllm"), ServingSettings(), users=1, input_len="100", output_len="20", gpu=["h100"]
    )
    basis = PlanBasis(short, complete(short, spec), MEASURED)
    tokens = predict(basis, choice, 1).settings.serving.max_num_batched_tokens
    assert tokens == (1280 if tried is None else 2496), "eight seats of 160 tokens"


GIB = 1024**3


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    asked = ["plan", "llama-3.1-8b", "--users", "2", "--ctx-avg", "2k", "--max-gpus", "1", *words, "--json"]
    assert main([*asked, "--quantization", "published", "--kv-cache-dtype", "auto"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_step_reads_what_is_offloaded_over_the_bus(capsys: pytest.CaptureFixture[str]) -> None:
    plain, offloaded = (planned(capsys, "--gpu", "l40s", *words) for words in ((), ("--cpu-offload-gb", "4")))
    times = [each["deployments"][0]["queueing"]["tpot_p50_ms"][1] / 1000 for each in (plain, offloaded)]
    over_the_bus = 4 * GIB / (0.7 * 32e9)  # PCIe 4.0 x16
    assert times[1] - times[0] == pytest.approx(over_the_bus, rel=0.1)
    best = offloaded["deployments"][0]
    assert best["memory"]["weight_bytes"] == plain["deployments"][0]["memory"]["weight_bytes"] - 4 * GIB
    assert list(best["commands"]) == ["vllm"] and best["commands"]["vllm"].endswith("--cpu-offload-gb 4")
    assert best["performance"]["confidence"] == 0.5  # no such server was ever compared
    assert any("l40s 22 GB/s" in note and "no answer is called sure" in note for note in offloaded["assumptions"])
    assert not any("--cpu-offload-gb" in note for note in plain["assumptions"])


def test_it_lets_a_model_fit_that_does_not(printed_by: Callable[..., str]) -> None:
    words = ["plan", "qwen3-14b", "--gpu", "rtx-4090", "--max-gpus", "1", "--users", "1", "--ctx-max", "4k"]
    words += ["--quantization", "published", "--kv-cache-dtype", "auto"]
    assert main(words) == 1
    assert "Rent 1 x rtx-4090" in printed_by(*words, "--cpu-offload-gb", "12")


def test_memory_that_is_the_hosts_is_read_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    plain, offloaded = (planned(capsys, "--gpu", "gb10", *words) for words in ((), ("--cpu-offload-gb", "4")))
    assert plain["deployments"][0]["queueing"] == offloaded["deployments"][0]["queueing"]


class Still(GroupClock):
    """Takes no time."""

    def seconds_beside(self, *of_group: float) -> float:
        return 0.0

    def seconds(self, *of_group: float) -> float:
        return 0.0


def test_experts_come_over_the_bus_as_far_as_tokens_go_to_them() -> None:
    spec, layout = resolve_model("qwen3-30b-a3b"), ParallelLayout()
    work = model_work(spec, 57 * GIB, "bfloat16", layout)
    steps = OffloadedSteps(Still(), work, 10 * GIB, 1e9)
    one, many = (steps.seconds_beside(count, count, count, count, count, count) for count in (1.0, 100_000.0))
    assert many == pytest.approx(10 * GIB / 1e9)
    assert one == pytest.approx(many * work.weights_read(1.0) / work.weights_read(1e9)) and one < 0.3 * many


def test_a_bus_that_nobody_knows_is_refused() -> None:
    assert host_bytes_per_second(find_gpu("h100")) == REACHED_SHARE * 64e9
    with pytest.raises(KvplanError, match="not known how fast"):
        host_bytes_per_second(find_gpu("cpu"))


def test_slots_of_adapters_are_weights_of_every_gpu_and_options_of_the_commands(
    ran: Callable[..., tuple[int, str, str]],
) -> None:
    words = "plan llama-3.1-8b --users 4 --ctx-avg 2k --gpu h100 --tp 1,2 --json"
    plain = json.loads(ran(words)[1])
    document = json.loads(ran(f"{words} --max-loras 8 --max-lora-rank 32")[1])
    spec = resolve_model("llama-3.1-8b")
    for tp, before, with_adapters in zip((1, 2), plain["deployments"], document["deployments"], strict=True):
        settings = ServingSettings(max_loras=8, max_lora_rank=32, tensor_parallel_size=tp)
        slots = vllm_slot_bytes(spec, range(spec.num_layers), settings, "bfloat16")
        assert with_adapters["tensor_parallel_size"] == tp
        assert with_adapters["memory"]["weight_bytes"] == before["memory"]["weight_bytes"] + slots
        assert with_adapters["memory"]["kv_pool_bytes"] < before["memory"]["kv_pool_bytes"]
        assert with_adapters["commands"]["vllm"].endswith("--enable-lora --max-loras 8 --max-lora-rank 32")
        assert set(with_adapters["commands"]) <= {"vllm", "kvplan"}
    assert document["deployments"][0]["commands"]["kvplan"].endswith("--max-loras 8 --max-lora-rank 32")
    assert any(
        sentence.startswith("Adapters: 8 slots of rank up to 32 are part") for sentence in document["assumptions"]
    )
    assert "adapters" not in " ".join(plain["assumptions"]).lower()

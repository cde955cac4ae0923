"""Answers that one can deploy: what a plan says of rates, of loads too large, of formats, replicas, nodes and money."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
from collections.abc import Callable

import pytest
import yaml

from kvplan.catalog.devices.gpus import find_gpu, load_gpus
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.vllm import latest_vllm
from kvplan.errors import UsageError
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.latency import Range
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.choices.layouts import layouts_across_nodes, layouts_in_a_node
from kvplan.planner.choices.load import share_within
from kvplan.planner.launch.manifests import compose_file, kubernetes_manifests
from kvplan.planner.launch.replicas import balancer_command, vllm_processes
from kvplan.planner.question.prices import parse_prices, with_prices
from kvplan.planner.question.request import ParallelSizes, PlanRequest
from kvplan.planner.question.slo import parse_slo
from kvplan.planner.search.fixes import cheapest_fix
from kvplan.planner.search.plan import PlanAnswer, make_plan
from kvplan.settings import ServingSettings

LLAMA = resolve_model("llama-3.1-8b")
SERVERS = tuple(gpu for gpu in load_gpus() if not gpu.is_cpu)
RATE = {"num_users": None, "requests_per_second": 10.0, "input_tokens": 1024, "output_tokens": 256}


def plan(*gpus: str, model: str = "llama-3.1-8b", **settings: object) -> PlanAnswer:
    asked: dict[str, object] = {"num_users": 40}
    if "input_tokens" not in settings:
        asked |= {"average_context": 8192, "longest_context": 8192}
    asked |= settings
    profiles = tuple(find_gpu(name) for name in gpus) or SERVERS
    return make_plan(resolve_model(model), PlanRequest(gpus=profiles, **asked))  # type: ignore[arg-type]


# defect 7


def test_a_request_rate_counts_as_met_only_where_it_is_surely_kept_up_with() -> None:
    found = plan("l40s", "h100", "a100-80", **RATE)
    for each in found.deployments:
        supply, interval = each.served.supply, each.speed_model.error_interval("throughput")
        assert supply is not None and interval is not None
        assert supply.middle * each.replicas >= 10.0
        assert each.verdict.meets == (each.verdict.confidence >= 0.75)
        if supply.middle * interval.low * each.replicas > 10.0:
            assert each.verdict.meets
    assert found.deployments[0].verdict.meets


def test_the_cost_of_a_rate_is_that_of_the_tokens_asked_for() -> None:
    best = plan("h100", **RATE).deployments[0]
    assert best.output_tokens_per_second.middle == best.output_tokens_per_second.between.high == pytest.approx(2560)
    cheapest, dearest = best.usd_per_million_output_tokens() or (0.0, 0.0)
    assert cheapest == pytest.approx((best.usd_per_hour or 0) / 3600 / 2560 * 1e6) and cheapest <= dearest


def test_a_rate_that_is_only_likely_kept_up_with_is_said_with_its_confidence(
    ran: Callable[..., tuple[int, str, str]],
) -> None:
    words = "plan llama-3.1-8b --request-rate 3.3 --input-len 4k --gpu l40s --max-gpus 3"
    code, printed, _ = ran(words)
    assert code == 0 and "Carries this load: 80 % sure." in printed
    found = [json.loads(ran(f"{words} --json{more}")[1]) for more in ("", " --confidence 0.9")]
    usual, surer = (each["deployments"][0]["performance"] for each in found)
    assert usual["slo"] == "met" and surer["slo"] == "likely"
    assert {round(each["confidence"], 2) for each in (usual, surer)} == {0.8}


@pytest.mark.parametrize(("bound", "share"), [(0.5, 0.0), (1.0, 0.0), (2.0, 0.5), (4.0, 1.0), (9.0, 1.0)])
def test_share_of_a_range(bound: float, share: float) -> None:
    assert share_within(Range(1.0, 4.0), bound) == pytest.approx(share)


# defect 8


def test_more_users_than_the_gpus_hold_says_how_many_gpus_it_takes(ran: Callable[..., tuple[int, str, str]]) -> None:
    code, _, said = ran("plan llama-3.1-8b --users 5000 --ctx-avg 8k --gpu h100 rtx-4080")
    assert code == 1
    assert "5,000 are needed" in said and "h100" in said and "weights" not in said
    fix = cheapest_fix(plan("h100", "rtx-4080", num_users=5000))
    assert fix is not None and f"--max-gpus to {fix.deployment.num_gpus}" in fix.sentence
    enough = plan("h100", "rtx-4080", num_users=5000, max_gpus=fix.deployment.num_gpus)
    assert enough.deployments
    assert not plan("h100", "rtx-4080", num_users=5000, max_gpus=fix.deployment.num_gpus // 2).deployments


# defect 9


def test_an_unreachable_service_level_names_the_nearest_by_speed_and_what_it_reaches() -> None:
    gpus = ("l4", "l40s", "a100-80", "h100", "h200", "b200")  # fast and slow ones; all of them take seven times as long
    found = plan(*gpus, slo=parse_slo(["ttft:1"]), num_users=10)
    miss = found.nearest_miss
    assert miss is not None and miss.kind == "slo" and miss.reason == "ttft"
    assert math.isfinite(miss.shortfall) and "even for one request alone" in miss.sentence
    slower = [each.shortfall for each in found.misses if each.kind == "slo"]
    assert miss.shortfall == min(slower)
    fix = cheapest_fix(found)
    assert fix is not None and fix.sentence.startswith("allow ttft:")
    bound = float(fix.sentence.removeprefix("allow ttft:"))
    assert plan(*gpus, slo=parse_slo([f"ttft:{bound}"]), num_users=10).deployments


# defect 10


def test_formats_that_the_hardware_supports_are_tried_and_shown_beside_the_published_one(
    ran: Callable[..., tuple[int, str, str]],
) -> None:
    code, printed, _ = ran("plan llama-3.1-70b --users 20 --ctx-avg 8k --gpu h100")
    assert code == 0
    first, _, others = printed.partition("Cheaper or faster with other formats:")
    assert "fp8" not in first
    assert "fp8" in others and "arXiv:2411.02355" in others and "compare the answers" in others
    found = plan("h100", model="llama-3.1-70b", num_users=20)
    cheapest = min(each.deployment.usd_per_hour or 0 for each in found.alternatives)
    assert cheapest < (found.deployments[0].usd_per_hour or 0)
    assert all(each.caveats for each in found.alternatives)


def test_formats_without_kernels_are_not_tried() -> None:
    older = EngineChoice("vllm", "0.13")  # the last releases know Marlin's fp8 on T4 and nothing of V100
    found = plan("t4", "v100-32gb", num_users=2, engine=older)
    assert {each.choice.gpu.id for each in found.deployments} == {"t4", "v100-32gb"}
    formats = {each.deployment.choice.formats for each in found.alternatives}
    assert not any("fp8" in weights or cache == "fp8" for weights, cache in formats)


def test_a_model_published_quantized_keeps_its_weights() -> None:
    found = plan("h200", model="deepseek-v3", num_users=8)
    assert {each.choice.weights.name for each in found.deployments} == {"fp8"}
    assert {each.deployment.choice.formats for each in found.alternatives} <= {("fp8", "fp8")}


# defect 11


def three_replicas() -> PlannedDeployment:
    found = plan("l40s", num_users=60, sizes=ParallelSizes(tensor=(1,)), quantizations=("published",))
    best = next(each for each in found.deployments if each.choice.layout == ParallelLayout())
    assert best.replicas >= 3
    return best


def test_every_replica_has_its_command_and_a_balancer_stands_before_them(
    ran: Callable[..., tuple[int, str, str]],
) -> None:
    best = three_replicas()
    processes = vllm_processes(best, LLAMA.id)
    assert len(processes) == best.replicas
    assert len({(process.node, process.gpus) for process in processes}) == best.replicas
    assert len({process.port for process in processes}) == best.replicas
    balancer = balancer_command(best, LLAMA.id) or ""
    assert all(f":{process.port}" in balancer for process in processes)
    words = "plan llama-3.1-8b --users 60 --ctx-max 8k --gpu l40s --tp 1 --quantization published --no-calibration"
    _, printed, _ = ran(words)
    assert all(process.line in printed for process in processes) and balancer in printed
    assert f"\n  all {best.replicas} processes (vllm):\n" in printed
    _, printed, _ = ran(words.replace("60", "30"))
    assert "\n  both processes (vllm):\n" in printed


def test_compose_starts_all_replicas_behind_one_port() -> None:
    best = three_replicas()
    document = yaml.safe_load(compose_file(best, LLAMA.id))
    engines = {name: each for name, each in document["services"].items() if name.startswith("vllm-")}
    assert len(engines) == best.replicas
    taken = [
        tuple(each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]) for each in engines.values()
    ]
    assert len(set(taken)) == best.replicas
    content = document["configs"]["balancer"]["content"]
    assert all(f"server {name}:8000;" in content for name in engines)
    assert document["services"]["balancer"]["ports"] == ["8000:80"]
    command = engines["vllm-0"]["command"]
    assert command[0] == LLAMA.id and "--max-model-len" in command


def test_kubernetes_runs_as_many_pods_as_replicas() -> None:
    best = three_replicas()
    workload, service = yaml.safe_load_all(kubernetes_manifests(best, LLAMA.id))
    assert workload["kind"] == "Deployment" and workload["spec"]["replicas"] == best.replicas
    container = workload["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert container["command"][:3] == ["vllm", "serve", LLAMA.id]
    assert service["kind"] == "Service"
    assert service["spec"]["selector"] == workload["spec"]["selector"]["matchLabels"]


def test_kubernetes_joins_nodes_in_a_leader_worker_set() -> None:
    best = plan("h100", model="deepseek-v3", max_gpus=16).deployments[0]
    workload, service = yaml.safe_load_all(kubernetes_manifests(best, "deepseek-ai/DeepSeek-V3"))
    assert workload["kind"] == "LeaderWorkerSet" and workload["spec"]["leaderWorkerTemplate"]["size"] == 2
    leader, worker = (
        workload["spec"]["leaderWorkerTemplate"][name]["spec"]["containers"][0]
        for name in ("leaderTemplate", "workerTemplate")
    )
    assert leader["resources"] == worker["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert "$(LWS_LEADER_ADDRESS)" in leader["command"] and "--headless" not in leader["command"]
    assert "--headless" in worker["command"][-1] and "--node-rank $LWS_WORKER_INDEX" in worker["command"][-1]
    assert service["spec"]["selector"]["role"] == "leader"


def test_formats_to_apply_are_printed_alone(ran: Callable[..., tuple[int, str, str]]) -> None:
    words = "plan llama-3.1-8b --users 60 --ctx-avg 8k --gpu l40s --format"
    assert set(yaml.safe_load(ran(f"{words} compose")[1])) <= {"services", "configs"}
    assert len(list(yaml.safe_load_all(ran(f"{words} kubernetes")[1]))) == 2


def test_head_room_and_a_spare_replica() -> None:
    plain = plan("l40s", num_users=60, sizes=ParallelSizes(tensor=(1,))).deployments[0]
    more = plan("l40s", num_users=60, sizes=ParallelSizes(tensor=(1,)), headroom=0.5, max_gpus=16).deployments[0]
    assert more.served.num_users * more.replicas >= 90 and more.replicas > plain.replicas
    spare = plan("l40s", num_users=60, sizes=ParallelSizes(tensor=(1,)), num_spare_replicas=1, max_gpus=16)
    first = spare.deployments[0]
    assert first.num_gpus == plain.num_gpus + 1 and first.replicas == plain.replicas
    assert len(vllm_processes(first, LLAMA.id)) == plain.replicas + 1
    assert first.output_tokens_per_second == plain.output_tokens_per_second


# defect 12


def test_a_model_that_needs_two_nodes_is_planned_over_two(ran: Callable[..., tuple[int, str, str]]) -> None:
    code, printed, _ = ran("plan deepseek-v3 --users 64 --ctx-avg 8k --gpu h100-sxm --max-gpus 16")
    assert code == 0
    assert "16 x h100-sxm, tp 8, pp 2" in printed and "400 Gb/s" in printed
    assert "--nnodes 2 --node-rank 1" in printed and "--headless" in printed
    both = ParallelSizes(tensor=(1, 8), data=(2, 16))
    layouts = {each.choice.layout for each in plan("h100", model="deepseek-v3", max_gpus=16, sizes=both).deployments}
    assert layouts == {ParallelLayout(8, 1, 2, True)}, "the experts' buffers of 16 groups hold the tokens of all"


def test_a_hint_promises_no_more_than_the_table(ran: Callable[..., tuple[int, str, str]]) -> None:
    code, _, complaint = ran("plan llama-3.1-8b --users 63 --ctx-avg 4k --gpu 1xl4")
    sentence, name = re.search(r"hint: (.*): then (.*) serves it\n", complaint).groups()  # type: ignore[union-attr]
    assert code == 1 and sentence.startswith("raise --max-gpus to ")
    more = sentence.removeprefix("raise --max-gpus to ")
    code, printed, _ = ran(f"plan llama-3.1-8b --users 63 --ctx-avg 4k --gpu l4 --max-gpus {more}")
    assert code == 0 and name in printed


def test_sizes_that_divide_nothing_are_named(ran: Callable[..., tuple[int, str, str]]) -> None:
    code, _, complaint = ran("plan llama-3.1-8b --users 4 --gpu h100-sxm --tp 3")
    assert code == 1 and "cannot be divided" in complaint and "hint: leave --tp out or give other sizes" in complaint


def test_shorter_steps_make_room_for_groups_that_share_experts(ran: Callable[..., tuple[int, str, str]]) -> None:
    words = "plan deepseek-v3 --users 64 --ctx-avg 8k --gpu h100-sxm --max-gpus 16 --tp 1 --dp 16"
    code, _, complaint = ran(words)
    assert code == 1 and "a step of all 16 data-parallel groups: --max-num-batched-tokens shortens it" in complaint
    code, printed, _ = ran(f"{words} --max-num-batched-tokens 1536")
    assert code == 0 and "--max-num-batched-tokens 1536" in printed and "--data-parallel-size 16" in printed


def test_nodes_are_crossed_only_where_one_is_not_enough() -> None:
    assert all(each.choice.num_nodes == 1 for each in plan("h100", max_gpus=64).deployments)
    one = plan("h100", model="deepseek-v3", max_gpus=16, sizes=ParallelSizes(num_nodes=1))
    assert not one.deployments


def test_sizes_that_are_asked_for_are_the_ones_tried() -> None:
    found = plan("h100", model="llama-3.1-70b", sizes=ParallelSizes(tensor=(2,), pipeline=(2,)))
    assert {each.choice.layout for each in found.deployments} == {ParallelLayout(2, 2)}


def test_layouts_of_a_mixture_whose_slices_do_not_divide_keep_experts_whole() -> None:
    model = resolve_model("qwen3-235b-a22b-fp8")
    layouts = layouts_in_a_node(model, find_gpu("h100"), ParallelSizes(), 8)
    assert ParallelLayout(8, enable_expert_parallel=True) in layouts and ParallelLayout(8) not in layouts
    assert ParallelLayout(4) in layouts
    across = layouts_across_nodes(model, find_gpu("h100"), ParallelSizes(), 32)
    assert all(layout.num_gpus > 8 for layout in across) and ParallelLayout(1, 1, 16, True) in across


def test_data_parallel_processes_of_two_nodes() -> None:
    found = plan("h200", model="deepseek-v3", max_gpus=16, sizes=ParallelSizes(tensor=(1,), data=(16,)))
    first, second = vllm_processes(found.deployments[0], "deepseek-ai/DeepSeek-V3")
    assert "--data-parallel-size 16 --enable-expert-parallel" in first.command
    assert "--data-parallel-size-local 8" in first.command and first.port == 8000
    assert "--headless --data-parallel-start-rank 8" in second.command and second.port is None


# money


def test_budget_leaves_out_what_is_dearer_and_what_has_no_price() -> None:
    found = plan(num_users=20, usd_per_hour=2.0)
    assert found.deployments
    assert all(each.usd_per_hour is not None and each.usd_per_hour <= 2.0 for each in found.deployments)
    small = plan("h100", num_users=20, usd_per_hour=0.5)
    assert not small.deployments and small.too_dear is not None
    fix = cheapest_fix(small)
    assert fix is not None and "--budget" in fix.sentence


def test_own_prices_rank(ran: Callable[..., tuple[int, str, str]]) -> None:
    words = "plan llama-3.1-8b --users 8 --ctx-avg 4k --gpu h100 l40s --price l40s=9 --price h100=0.5 --json"
    first = json.loads(ran(words)[1])["deployments"][0]
    assert first["gpu"] == "h100-sxm" and first["cost"]["usd_per_hour"] == 0.5
    assert first["cost"]["price_source"] == "given with --price"


def test_a_deployment_without_a_price_is_not_cheaper_than_one_with() -> None:
    gpus = with_prices((find_gpu("h100"), find_gpu("mi355x")), {})
    assert gpus[1].price is None
    found = make_plan(LLAMA, PlanRequest(num_users=8, average_context=4096, gpus=gpus))
    priced = [each.usd_per_hour is not None for each in found.deployments if each.verdict.meets]
    assert priced == sorted(priced, reverse=True)


@pytest.mark.parametrize("text", ["h100", "h100=", "h100=-1", "h100=x", "nosuch=1", "h100=inf"])
def test_prices_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError):
        parse_prices([text])


# forms


def test_csv_has_one_row_per_deployment(ran: Callable[..., tuple[int, str, str]]) -> None:
    _, printed, _ = ran("plan llama-3.1-8b --users 8 --ctx-avg 4k --gpu h100 l40s --format csv")
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert {row["gpu"] for row in rows} == {"h100-sxm", "l40s"}
    assert float(rows[0]["ttft_ms_low"]) <= float(rows[0]["ttft_ms_high"])
    assert {"tensor_parallel_size", "kv_pool_bytes", "usd_per_hour", "limit", "slo"} <= set(rows[0])


def test_the_balancer_of_a_row_names_the_model(ran: Callable[..., tuple[int, str, str]]) -> None:
    words = "plan llama-3.1-8b --users 100 --ctx-avg 8k --gpu l40s --max-gpus 8 --format csv"
    rows = list(csv.DictReader(io.StringIO(ran(words)[1])))
    assert any(row["replicas"] != "1" for row in rows)
    for row in rows:
        line = shlex.split(row["balancer"])
        names = line[line.index("--static-models") + 1].split(",") if line else []
        assert names == ([] if row["replicas"] == "1" else [LLAMA.id] * int(row["replicas"]))


def test_encoder_tokens_are_part_of_each_sequence(ran: Callable[..., tuple[int, str, str]]) -> None:
    words = "plan whisper-large-v3 --users 8 --ctx-avg 448 --gpu l4 --json"
    own = json.loads(ran(words)[1])["deployments"][0]["capacity"]
    estimate = json.loads(ran("estimate whisper-large-v3 --ctx 448 --gpu l4 --json --max-num-seqs 8")[1])
    assert own["worst_case_sequences"] == int(estimate["deployments"][0]["max_concurrency"])
    short = json.loads(ran(f"{words} --encoder-tokens 750")[1])["deployments"][0]["capacity"]
    assert short["average_sequences"] > 1.5 * own["average_sequences"]
    code, _, said = ran("plan t5-base --users 4 --ctx-avg 512 --gpu h100")
    assert code == 2 and "--encoder-tokens" in said
    assert ran("plan t5-base --users 4 --ctx-avg 512 --gpu h100 --encoder-tokens 512")[0] == 0
    code, _, said = ran("plan llama-3.1-8b --users 4 --ctx-avg 2k --gpu h100 --encoder-tokens 512")
    assert code == 2 and "has no cross attention" in said


def test_commands_only_for_engines_that_run_there() -> None:
    from kvplan.planner.launch.engines import launch_commands

    amd = plan("mi300x", num_users=8).deployments[0]
    assert "tensorrt-llm" not in launch_commands(amd, LLAMA.id) and "vllm" in launch_commands(amd, LLAMA.id)
    unknown = plan("h100", model="gemma-3-27b", num_users=4, average_context=4096).deployments[0]
    assert "kvplan" not in launch_commands(unknown, "google/gemma-3-27b-it")


def test_dtypes_are_those_that_a_gpu_has(ran: Callable[..., tuple[int, str, str]]) -> None:
    document = json.loads(ran("plan llama-3.1-8b --users 4 --ctx-avg 2k --gpu t4 --json")[1])
    best = document["deployments"][0]
    assert best["quantization"] == best["kv_cache_dtype"] == "float16"
    assert "--dtype float16" in best["commands"]["vllm"]


def test_settings_that_were_asked_for_are_in_the_command(ran: Callable[..., tuple[int, str, str]]) -> None:
    words = "plan llama-3.1-8b --users 4 --ctx-avg 2k --gpu h100 --block-size 32 --dtype half --json"
    command = json.loads(ran(words)[1])["deployments"][0]["commands"]["vllm"]
    assert "--block-size 32" in command and "--dtype float16" in command


def test_a_count_with_the_gpus_name_limits_their_number(ran: Callable[..., tuple[int, str, str]]) -> None:
    document = json.loads(ran("plan llama-3.1-8b --users 8 --ctx-avg 4k --gpu 2xh100 --json")[1])
    assert document["request"]["max_gpus"] == 2
    assert {each["num_gpus"] for each in document["deployments"]} <= {1, 2}


def test_a_pool_that_only_just_holds_the_load_is_not_sure() -> None:
    """Nine of ten start-ups lie within a range around the predicted KV pool: its low end has to hold the users."""
    asked = {"max_gpus": 1, "settings": ServingSettings(max_num_batched_tokens=8192)}
    most = plan("h100", num_users=1, **asked).deployments[0].capacity.average_sequences
    full = plan("h100", num_users=most, quantizations=("published",), kv_cache_dtypes=("auto",), **asked)
    best = full.deployments[0]
    assert best.served.num_users == best.capacity.average_sequences
    assert not best.verdict.meets and 0.4 < best.verdict.confidence < 0.75
    less = plan("h100", num_users=round(0.9 * most), **asked)
    assert less.deployments[0].verdict.meets


def test_a_gpu_without_a_deployment_says_why(ran: Callable[..., tuple[int, str, str]]) -> None:
    asked = "plan llama-3.1-8b --users 40 --ctx-avg 8k --gpu l4 h100-sxm v100-32gb --max-gpus 1 --quantization fp8"
    code, out, _ = ran(asked)
    assert code == 0
    assert "not on l4: it holds 10 sequences of 8,192 tokens at once; 40 are needed." in out
    assert f"not on v100-32gb: vLLM {latest_vllm()} does not run on v100-32gb" in out and "not on h100-sxm" not in out
    older = ran(f"{asked} --engine vllm@0.19")[1]
    assert "not on v100-32gb: vLLM has no kernels for fp8 weights" in older
    document = json.loads(ran(f"{asked} --json")[1])
    assert list(document["left_out"]) == ["l4", "v100-32gb"]
    _, cheap, _ = ran("plan llama-3.1-8b --users 4 --ctx-avg 8k --gpu l40s b200 --budget 3")
    assert "not on b200: one costs more than $3.00 per hour" in cheap


def test_cards_without_a_bridge_are_tried_in_stages_too() -> None:
    stages = [
        {each.pipeline_parallel_size for each in layouts_in_a_node(LLAMA, gpu, ParallelSizes(), 4)}
        for gpu in (find_gpu("a100-80gb-pcie"), find_gpu("a100-80gb-pcie").with_bridge(), find_gpu("a100-80gb-sxm"))
    ]
    assert stages == [{1, 2, 4}, {1, 2, 4}, {1}]


def test_a_plan_counts_bridges_where_they_are_asked_for(ran: Callable[..., tuple[int, str, str]]) -> None:
    words = "plan llama-3.1-70b --users 8 --ctx-avg 4k --gpu a100-80gb-pcie --max-gpus 2 --tp 2"
    found = []
    for option, note in (
        ("", "--nvlink-bridge puts one on each pair"),
        ("--nvlink-bridge", "bridges join the cards in pairs"),
    ):
        code, out, _ = ran(f"{words} {option}")
        assert code == 0 and note in " ".join(out.split())
        _, out, _ = ran(f"{words} {option} --json")
        document = json.loads(out)
        assert any(note in each for each in document["assumptions"])
        found.append(document["deployments"][0]["performance"]["tpot_ms"][0])
    assert found[1] < 0.95 * found[0]
    code, _, err = ran(f"{words.replace('a100-80gb-pcie', 'h100-sxm')} --nvlink-bridge")
    assert code == 2 and "None of these GPUs takes an NVLink bridge" in err


def test_shares_are_written_as_numbers_or_in_per_cent(ran: Callable[..., tuple[int, str, str]]) -> None:
    words = "plan llama-3.1-8b --users 4 --ctx-avg 2k --gpu h100 --json"
    number, percent = (
        json.loads(ran(f"{words} --gpu-memory-utilization {share} --headroom {more}")[1])
        for share, more in ((0.8, 0.5), ("80%", "50%"))
    )
    assert number == percent and number["deployments"][0]["gpu_memory_utilization"] == 0.8
    assert number["request"]["num_users"] == 6
    code, _, said = ran(f"{words} --headroom 20")
    assert code == 2 and "hint: for 20 % say --headroom 20%, or 0.2; 20 is 2000 %" in said
    code, _, said = ran(f"{words} --gpu-memory-utilization much")
    assert code == 2 and "--gpu-memory-utilization 'much' is not a share" in said


def test_one_user_is_one(ran: Callable[..., tuple[int, str, str]]) -> None:
    _, printed, _ = ran("plan mamba-2.8b --users 1 --ctx-avg 1 --ctx-max 2k --output-len 1 --gpu l4")
    assert " for 1 user of " in printed and "sequences of 1 on average, 2,048 at most" in printed
    assert "block_size" not in printed  # a state has no blocks of tokens


def test_a_cpu_that_was_never_calibrated_keeps_nothing_surely() -> None:
    """How fast one is depends on units of which its data sheet here says nothing."""
    found = plan(
        "cpu", model="gpt2", num_users=4, average_context=512, longest_context=1024, slo=parse_slo(["tpot:50"])
    )
    assert found.deployments and not any(each.verdict.meets for each in found.deployments)
    assert found.deployments[0].verdict.confidence == 0.5
    unasked = plan("cpu", model="gpt2", num_users=4, average_context=512, longest_context=1024).deployments[0]
    assert unasked.verdict.weakest is not None and unasked.verdict.weakest.confidence == 0.5


def test_words_of_numbers_that_are_large_or_one(ran: Callable[..., tuple[int, str, str]]) -> None:
    words = "plan llama-3.1-8b --gpu h100 --input-len 100 --output-len 10"
    assert "; 1,000,000 are needed." in ran(f"{words} --request-rate 1e6")[2]
    assert "(1 replica and 2 spare, tp 1)" in ran(f"{words} --users 4 --spare-replicas 2")[1]


def test_a_time_in_closed_form_lies_between_its_ends(ran: Callable[..., tuple[int, str, str]]) -> None:
    """The server is busy with answers of one token, so the load is not played: 142 ms stood before 143 to 144."""
    _, printed, _ = ran("plan llama-3.1-8b --users 40 --input-len 1 --output-len 1 --gpu h100")
    found = re.search(r"TTFT p50 (\d+) \((\d+)-(\d+)\) ms", printed)
    assert found is not None and "Server: " in printed
    middle, low, high = map(int, found.groups())
    assert low <= middle <= high


def test_a_command_without_a_longest_sequence_is_said_to_have_the_models(
    ran: Callable[..., tuple[int, str, str]],
) -> None:
    """vLLM refuses to start Llama-3.1-8B with its 131,072 tokens on an L4, whose pool holds some 30,000."""
    words = "plan --users 3 --ctx-avg 4k --gpu l4 --like"
    open_ended, stated = "vllm serve meta-llama/Llama-3.1-8B", "vllm serve meta-llama/Llama-3.1-8B --max-model-len 8k"
    said = "The command leaves --max-model-len to the model's 131,072"
    assert [said in ran(f"{words} '{command}'")[1] for command in (open_ended, stated)] == [True, False]

"""Inverse planning: capacity in three senses, service levels, costs, misses with their fixes, commands, speed."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvplan.catalog.devices.gpus import find_gpu, load_gpus
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.sglang import sglang_release
from kvplan.commands.printing.plans import print_answer
from kvplan.commands.sweep import sweep
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.latency import SpeedModel, decode_step_seconds, prefill_seconds
from kvplan.estimate.speed.steps.work import model_work
from kvplan.planner.answer.document import deployment_document, plan_document
from kvplan.planner.answer.picture import concurrency_curve, memory_parts
from kvplan.planner.choices.formats import weight_formats
from kvplan.planner.launch.engines import ENGINES, launch_commands
from kvplan.planner.question.asking import read_dollars, read_rate, read_users
from kvplan.planner.question.request import ParallelSizes, PlanRequest, complete
from kvplan.planner.question.slo import MLPERF, measured_bounds, parse_slo, split_slo
from kvplan.planner.search.fixes import cheapest_fix
from kvplan.planner.search.plan import PlanAnswer, make_plan
from kvplan.settings import ServingSettings
from kvplan.units import GIB

LLAMA = resolve_model("llama-3.1-8b")
BIG = resolve_model("llama-3.1-70b")
SERVERS = tuple(gpu for gpu in load_gpus() if not gpu.is_cpu)


def plan(*gpus: str, model=LLAMA, **settings: object) -> PlanAnswer:  # type: ignore[no-untyped-def]
    asked: dict[str, object] = {"num_users": 40, "average_context": 8192, "longest_context": 32768}
    asked |= settings
    profiles = tuple(find_gpu(name) for name in gpus) or SERVERS
    return make_plan(model, PlanRequest(gpus=profiles, **asked))  # type: ignore[arg-type]


def test_founding_example() -> None:
    """Llama 3.1 8B on one A100 80 GB: 12 to 13 sequences of 32k, and more than the 40 of 8k that the texts name."""
    best = plan("a100-80", max_gpus=1, settings=ServingSettings(gpu_memory_utilization=0.9)).deployments[0]
    assert best.num_gpus == 1
    assert best.capacity.worst_sequences in (12, 13)
    assert 50 <= best.capacity.average_sequences <= 56
    assert best.limit == "kv"


def test_rule_of_thumb_stands_beside() -> None:
    found = plan("a100-80")
    assert found.rule is not None
    assert found.rule.total_bytes == found.rule.weight_bytes + 40 * 1_200_000_000 + 5_000_000_000
    assert found.rule.total_bytes / 1e9 == pytest.approx(69, abs=0.2)


def test_two_a100_for_70b_in_16_bits() -> None:
    """Claim 5: 140 GB of weights need two 80 GB GPUs at least."""
    sizes = {each.choice.layout.num_gpus for each in plan("a100-80", model=BIG, num_users=1).deployments}
    assert sizes and min(sizes) >= 2
    short = {"average_context": 2048, "longest_context": 2048}
    eight_bit = plan("a100-80", model=BIG, num_users=1, quantizations=("fp8",), max_gpus=1, **short)
    assert [each.choice.weights.name for each in eight_bit.deployments] == ["fp8"]


def test_ranked_by_cost_with_unknown_prices_last() -> None:
    deployments = [each for each in plan().deployments if each.verdict.meets]
    costs = [each.usd_per_hour for each in deployments]
    known = [cost for cost in costs if cost is not None]
    assert known == sorted(known)
    assert all(cost is None for cost in costs[len(known) :])


def test_cost_per_token_is_price_over_throughput() -> None:
    best = plan("h100").deployments[0]
    cheapest, dearest = best.usd_per_million_output_tokens() or (0.0, 0.0)
    low, high = best.output_tokens_per_second.between.low, best.output_tokens_per_second.between.high
    assert best.usd_per_hour == 2.69 * best.num_gpus
    assert dearest == pytest.approx(best.usd_per_hour / 3600 / low * 1e6)
    assert 0 < cheapest < dearest
    assert cheapest == pytest.approx(best.usd_per_hour / 3600 / high * 1e6)


def test_service_level_needs_more_or_faster_gpus() -> None:
    free = plan("a100-80", "h100")
    strict = plan("a100-80", "h100", slo=parse_slo(["ttft:500", "tpot:50"]))
    assert strict.deployments[0].usd_per_hour > free.deployments[0].usd_per_hour  # type: ignore[operator]
    for each in strict.deployments:
        assert each.expected.time("ttft", "mean").middle <= 0.5  # type: ignore[union-attr]
        assert each.expected.time("tpot", "mean").middle <= 0.05  # type: ignore[union-attr]
        assert each.verdict.meets == (each.verdict.confidence >= 0.75)
    assert strict.deployments[0].limit in ("ttft", "tpot")


def test_worst_case_needs_more() -> None:
    average = plan("h100").deployments[0]
    worst = plan("h100", worst_case=True).deployments[0]
    assert worst.num_gpus > average.num_gpus
    assert worst.capacity.worst_sequences * worst.replicas >= 40


def test_request_rate_becomes_users_by_littles_law() -> None:
    asked = {"num_users": None, "requests_per_second": 4.0, "average_context": 1024, "longest_context": 4096}
    best = plan("h100", **asked).deployments[0]
    seconds = best.served.speed.e2el_seconds.middle
    assert best.users_per_replica == pytest.approx(4.0 * seconds / best.replicas, rel=0.05)


def test_nothing_fits_names_the_nearest_miss_and_a_fix() -> None:
    found = plan("l4", model=BIG, max_gpus=2)
    assert found.deployments == ()
    assert found.nearest_miss is not None and found.nearest_miss.missing_bytes > GIB
    fix = cheapest_fix(found)
    assert fix is not None and "--" in fix.sentence


def test_what_is_fast_enough_for_one_request_is_nearer_than_what_is_not() -> None:
    """Two L40S miss 15 ms by a little for one request, and by far under the load; two H100 only under it."""
    asked = {"num_users": 100, "average_context": 4096, "longest_context": 4096}
    found = plan("h100-sxm", "l40s", **asked, slo=parse_slo(["ttft:300", "tpot:15"]), max_gpus=2)
    miss = found.nearest_miss
    assert miss is not None and miss.choice.gpu.id == "h100-sxm" and "in progress" in miss.sentence


def test_capacity_miss_counts_what_would_be_needed() -> None:
    found = plan("rtx-4090", num_users=500, max_gpus=1)
    miss = found.nearest_miss
    assert miss is not None and miss.reason == "kv"
    assert "500 are needed" in miss.sentence or "does not fit" in miss.sentence


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["ttft:500", "tpot:50"], (0.5, 0.05, None)),
        (["e2el:5s"], (None, None, 5.0)),
        (["mlperf:llama3.1-8b-interactive"], (0.5, 0.03, None)),
        (["p99_ttft:500", "p50_e2el:5s"], (0.5, None, 5.0)),
    ],
)
def test_slo(texts: list[str], expected: tuple[float | None, ...]) -> None:
    found = parse_slo(texts)
    assert (found.ttft_seconds, found.tpot_seconds, found.e2el_seconds) == expected


def test_a_bound_says_which_statistic_it_is_of() -> None:
    words = [bound.word for bound in parse_slo(["ttft:500", "p99_tpot:50", "p50_e2el:5s"]).bounds()]
    assert words == ["ttft", "p99_tpot", "p50_e2el"]
    assert [bound.text for bound in parse_slo(["mlperf:llama2-70b"]).bounds()] == [
        "p99 TTFT within 2,000 ms",
        "p99 TPOT within 200 ms",
    ]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("TTFT<1s", ["ttft 1"]),
        ("ttft < 1000, tpot <= 50ms", ["ttft 1", "tpot 0.05"]),
        ("ttft=1000", ["ttft 1"]),
        ("p99_ttft<2s p95_tpot:40", ["p99_ttft 2", "p95_tpot 0.04"]),
        ("P90_E2EL:5s", ["p90_e2el 5"]),
        ("avg_ttft<1s", ["ttft 1"]),
    ],
)
def test_bounds_are_read_as_people_write_them(written: str, words: list[str]) -> None:
    bounds = parse_slo(split_slo([written])).bounds()
    assert [f"{bound.word} {bound.seconds:g}" for bound in bounds] == words


@pytest.mark.parametrize("written", ["TTFT>1s", "p75_ttft:500", "ttft<0", "ttft<1m", "ttft", "<1s"])
def test_other_words_are_no_bounds(written: str) -> None:
    with pytest.raises(UsageError, match="is not a service level"):
        parse_slo(split_slo([written]))


def test_a_higher_percentile_is_less_likely_to_keep_the_same_bound() -> None:
    shares = []
    for statistic in ("p50", "p90", "p95", "p99"):
        slo = parse_slo([f"{statistic}_ttft:700"])
        found = plan("h100", num_users=64, max_gpus=4, sizes=ParallelSizes(tensor=(4,)), slo=slo)
        shares.append(found.deployments[0].verdict.confidence)
    assert shares[0] > shares[1] > shares[2] > shares[3] > 0


@pytest.mark.parametrize(
    ("read", "written", "number"),
    [
        (read_users, "1e3", 1000),
        (read_users, "1,000", 1000),
        (read_users, 40, 40),
        (read_rate, "12/s", 12.0),
        (read_rate, "720/min", 12.0),
        (read_rate, "12 req/s", 12.0),
        (read_rate, 0.5, 0.5),
        (read_dollars, "$60", 60.0),
        (read_dollars, "$1,200.50/h", 1200.5),
        (read_dollars, "60 USD", 60.0),
    ],
)
def test_amounts_are_read_as_people_write_them(read: Any, written: Any, number: float) -> None:
    assert read(written) == number


@pytest.mark.parametrize(
    ("read", "written"),
    [(read_users, "40k"), (read_users, "1.5"), (read_users, "inf"), (read_rate, "5/x"), (read_rate, ""),
     (read_dollars, "cheap"), (read_dollars, "60/day"), (read_dollars, "1,00")],
)  # fmt: skip
def test_other_amounts_are_refused(read: Any, written: Any) -> None:
    with pytest.raises(UsageError, match="must be a"):
        read(written)


def test_a_measured_load_is_judged_by_its_99th_percentiles() -> None:
    assert measured_bounds(["ttft:500 p99_tpot:50", "e2el:5s"]) == {"ttft": 0.5, "tpot": 0.05, "e2el": 5.0}
    with pytest.raises(UsageError, match="99th percentile"):
        measured_bounds(["p50_ttft:500"])
    with pytest.raises(UsageError, match="not by the 95th"):
        measured_bounds(["p95_ttft<1s"])


@pytest.mark.parametrize(
    "text", ["p75_ttft:5", "p99:5", "ttft", "ttft:", "ttft:-1", "ttft:0", "speed:5", "mlperf:gpt9", "ttft:1e3"]
)
def test_slo_errors(text: str) -> None:
    with pytest.raises(UsageError):
        parse_slo([text])


def test_mlperf_presets_are_in_milliseconds() -> None:
    assert all(ttft >= 450 and tpot >= 30 for ttft, tpot in MLPERF.values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs a load"),
        ({"num_users": 1, "average_context": 9000, "longest_context": 8000}, "longer than"),
        ({"num_users": 1, "input_tokens": 9000, "output_tokens": 1, "longest_context": 8000}, "is longer|do not fit"),
        ({"num_users": 1, "average_context": 8000, "input_tokens": 9000}, "do not hold 8,000 on average"),
        ({"num_users": 1, "average_context": 8000, "input_tokens": 900, "output_tokens": 50}, "do not hold 8,000"),
    ],
)
def test_contradictions(settings: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        complete(PlanRequest(**settings), LLAMA)  # type: ignore[arg-type]


def test_beyond_the_positions() -> None:
    with pytest.raises(KvplanError, match="positions"):
        complete(PlanRequest(num_users=1, longest_context=10**6), LLAMA)


@pytest.mark.parametrize("model", ["gpt2", "llama-3.1-8b"])
def test_lengths_are_filled_consistently(model: str) -> None:
    work = complete(PlanRequest(num_users=4), resolve_model(model))
    assert work.input_tokens + work.output_tokens <= work.longest_context
    assert work.average_context <= work.longest_context
    assert work.assumptions


def test_commands_of_every_engine() -> None:
    found = plan("h100", model=BIG, num_users=8, kv_cache_dtypes=("fp8",)).deployments[0]
    commands = launch_commands(found, "meta-llama/Llama-3.1-70B")
    assert set(commands) <= set(ENGINES)
    size = found.choice.layout.tensor_parallel_size
    assert f"--tensor-parallel-size {size}" in commands["vllm"] and "--kv-cache-dtype fp8" in commands["vllm"]
    assert f"--tp {size}" in commands["sglang"] and f"--tp_size {size}" in commands["tensorrt-llm"]
    assert f"--num-shard {size}" in commands["tgi"] and "--cache-type-k q8_0" in commands["llama.cpp"]
    assert "kvplan" not in commands, "kvplan's engine does not divide a model"
    small = plan("h100", num_users=8).deployments[0]
    alone = launch_commands(small, LLAMA.id)["kvplan"]
    assert alone.startswith("kvplan sweep --model meta-llama/Llama-3.1-8B --gpu-memory-utilization ")


@pytest.mark.parametrize(
    ("model", "lengths", "context"),
    [
        ("gemma-3-27b", {"average_context": 8192, "longest_context": 8192}, 10 * 8192),
        ("qwen3-next-80b-a3b", {"average_context": 4096, "longest_context": 65536}, 65536),
        ("llama-3.1-8b", {"average_context": 4096, "longest_context": 8192, "worst_case": True}, 10 * 8192),
    ],
)
def test_llama_cpp_gets_room_for_the_tokens_of_all_slots(model: str, lengths: dict[str, int], context: int) -> None:
    """A context is counted in tokens, also where most layers keep a window or a state."""
    found = plan("h200", model=resolve_model(model), num_users=10, **lengths).deployments[0]
    words = launch_commands(found, model)["llama.cpp"].split()
    assert words[words.index("--parallel") + 1] == "10"
    assert words[words.index("--ctx-size") + 1] == str(context)


def test_steps_with_fewer_tokens_than_users_need_more_replicas() -> None:
    """vLLM refuses max_num_batched_tokens below max_num_seqs."""
    small = ServingSettings(max_num_batched_tokens=16)
    found = plan("h100", num_users=40, average_context=2048, longest_context=2048, settings=small).deployments[0]
    serving = found.prediction.settings.serving
    assert found.replicas >= 3 and serving.max_num_seqs <= serving.max_num_batched_tokens == 16
    alone = plan("h100", num_users=40, average_context=2048, longest_context=2048, settings=small, max_gpus=1)
    assert alone.nearest_miss is not None
    assert alone.nearest_miss.sentence == "Its steps of 16 tokens have room for 16 sequences; 40 are needed."
    fix = cheapest_fix(alone)
    assert fix is not None and fix.sentence == "leave --max-num-batched-tokens out"


@pytest.mark.parametrize(
    ("model", "length", "encoder_tokens", "engines"),
    [("whisper-large-v3", 400, None, {"vllm"}), ("t5-base", 512, 512, set())],
)
def test_a_model_that_attends_to_an_encoder_has_vllms_command_alone(
    model: str, length: int, encoder_tokens: int | None, engines: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    spec, settings = resolve_model(model), ServingSettings(encoder_tokens=encoder_tokens)
    found = plan("h100", model=spec, average_context=length, longest_context=length, settings=settings)
    assert set(launch_commands(found.deployments[0], spec.id)) == engines
    print_answer(found, None, "table", None)
    assert f"{spec.id} attends to an encoder: " in capsys.readouterr().out


def test_sglangs_groups_share_what_its_command_says() -> None:
    """--attn-dp-size stands for --dp-size and --enable-dp-attention from 0.5.22 on, which its command is of."""
    sizes = ParallelSizes(tensor=(1,), pipeline=(1,), data=(8,), enable_expert_parallel=True)
    (found, *_) = plan("h200", model=resolve_model("deepseek-v3"), num_users=64, sizes=sizes).deployments
    settings = found.prediction.settings.serving
    words = shlex.split(launch_commands(found, "deepseek-ai/DeepSeek-V3")["sglang"], comments=True)
    said = dict(pairwise(words))
    assert said["--attn-dp-size"] == said["--tp"] == "8"
    assert "--enable-dp-attention" not in words and "--dp-size" not in words
    assert int(said["--max-running-requests"]) == 8 * settings.max_num_seqs
    assert int(said["--chunked-prefill-size"]) == 8 * settings.max_num_batched_tokens
    assert not sglang_release("0.5.21").names_attention_groups


def test_commands_ask_for_the_kernels_of_experts() -> None:
    settings = ServingSettings(moe_backend="triton")
    found = plan("b200", model=resolve_model("qwen3-30b-a3b"), num_users=8, settings=settings).deployments[0]
    commands = launch_commands(found, "Qwen/Qwen3-30B-A3B")
    assert "--moe-backend triton" in commands["vllm"] and "--moe-runner-backend triton" in commands["sglang"]
    with pytest.raises(UsageError, match="has no experts"):
        plan("b200", num_users=8, settings=settings)


def test_the_command_of_the_own_engine_is_one_that_exists() -> None:
    found = plan("h100", model=resolve_model("gpt2"), average_context=512, longest_context=1024).deployments[0]
    words = shlex.split(launch_commands(found, "gpt2")["kvplan"], comments=True)
    assert words[:2] == ["kvplan", "sweep"]
    options = {f"--{option.replace('_', '-')}" for option in signature(sweep).parameters}
    assert {word for word in words if word.startswith("--")} <= options


def test_formats_are_named_as_they_are_served() -> None:
    served = plan("h100", model=resolve_model("gpt2"), average_context=512, longest_context=1024).deployments[0]
    assert served.choice.weights.name == served.prediction.settings.serving.dtype == "bfloat16"
    eight_bit = plan("h100", quantizations=("fp8",)).deployments[0]
    assert "-Q8_0.gguf" in launch_commands(eight_bit, LLAMA.id)["llama.cpp"]
    assert "--quantization fp8" in launch_commands(eight_bit, LLAMA.id)["vllm"]


def test_another_format_of_a_quantized_model_is_another_checkpoint() -> None:
    """vLLM refuses --quantization fp8 for a checkpoint in MXFP4."""
    spec = resolve_model("gpt-oss-120b")
    own, other = (plan("h100", model=spec, quantizations=(name,)).deployments[0] for name in ("mxfp4", "fp8"))
    assert own.choice.weights.is_published and other.weights_name == "fp8"
    layout = other.choice.layout
    ranks = layout.tensor_parallel_size * layout.data_parallel_size
    assert other.prediction.rank.weight_bytes * ranks > 1.6 * 64e9
    command = launch_commands(other, spec.id)["vllm"]
    assert "'<an fp8 build of openai/gpt-oss-120b>'" in command and "--quantization" not in command
    both = plan("h100", model=spec, quantizations=("fp8", "published"))
    assert {each.weights_name for each in both.deployments} == {"mxfp4", "fp8"}


def test_document_is_json_and_adds_up() -> None:
    found = plan("h100", "l4")
    document = json.loads(json.dumps(plan_document(found)))
    assert document["schema"] == "kvplan.plan/1"
    for each in document["deployments"]:
        memory = each["memory"]
        assert memory["kv_used_average_bytes"] <= memory["kv_used_worst_case_bytes"] <= memory["kv_pool_bytes"]
        sizes = each["tensor_parallel_size"] * each["pipeline_parallel_size"] * each["data_parallel_size"]
        assert each["num_gpus"] == each["replicas"] * sizes
        assert each["performance"]["origin"] == "roofline"
        assert each["performance"]["ttft_ms"][0] <= each["performance"]["ttft_ms"][1]
    again = deployment_document(found.deployments[0], LLAMA.id, found.rule)
    assert again["capacity"] == document["deployments"][0]["capacity"]


def test_bar_parts_sum_to_the_gpu() -> None:
    for each in plan("h100", "l4", "a100-80").deployments:
        assert sum(memory_parts(each)) == pytest.approx(each.choice.gpu.memory_bytes / GIB, rel=0.02)
        lengths, held = concurrency_curve(each)
        assert held == sorted(held, reverse=True)
        assert lengths[-1] == 32768


def test_roofline_has_the_right_order() -> None:
    h100, l4 = find_gpu("h100"), find_gpu("l4")
    work = model_work(LLAMA, 16 * 10**9, "bfloat16", ParallelLayout(1))
    one, many = decode_step_seconds(work, h100, 1, 10**8), decode_step_seconds(work, h100, 64, 10**8)
    assert 0.0045 < one.low < one.high < 0.02  # 15 GB at 3.35 TB/s
    assert one.low < many.low < 64 * one.low
    assert decode_step_seconds(work, l4, 1, 10**8).low > 8 * one.low
    short, long = prefill_seconds(work, h100, 1000), prefill_seconds(work, h100, 8000)
    assert 7 < long.low / short.low < 12
    alone, crowd = (SpeedModel(work, h100, 1000, 100, 10**8).speed(users) for users in (1, 32))
    assert crowd.output_tokens_per_second.low > alone.output_tokens_per_second.high
    assert crowd.tpot_seconds.low > alone.tpot_seconds.low


def test_command_prints_a_table(printed_by: Callable[..., str]) -> None:
    words = "plan llama-3.1-8b --users 40 --ctx-avg 8k --ctx-max 32k --slo ttft:1000 tpot:100 --gpu h100 a100-80"
    printed = printed_by(words)
    assert printed.startswith("Rent ") and "h100-sxm" in printed and "vllm serve" in printed
    assert "Step times are sums of measured kernels." in printed and "by rule" not in printed
    assert "by rule: weights + 1.2 GB x users + 5 GB, 69 GB in all" in printed_by(*words.split(), "--explain")


@pytest.mark.slow
def test_picture(tmp_path: Path) -> None:
    """Drawn in a process of its own: matplotlib stays out of this one."""
    target = tmp_path / "plan.png"
    code = "import sys; from kvplan.cli import main; sys.exit(main(sys.argv[1:]))"
    words = f"plan llama-3.1-8b --users 8 --ctx-max 8k --gpu h100 l4 --json --plot {target}"
    done = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == "kvplan.plan/1"
    assert target.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("engine", "share"), [("vllm", 0.92), ("vllm@0.19", 0.9)])
def test_estimate_plan_and_the_pasted_command_have_one_default(
    answer_of, printed_by, engine: str, share: float
) -> None:
    estimated = answer_of("estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--engine", engine)["deployments"][0]
    arguments = ["--users", "8", "--ctx-avg", "4k", "--gpu", "h100-sxm", "--engine", engine, "--json"]
    planned = json.loads(printed_by("plan", "llama-3.1-8b", *arguments))["deployments"][0]
    assert estimated["gpu_memory_utilization"] == planned["gpu_memory_utilization"] == share
    assert f"--gpu-memory-utilization {share}" in planned["commands"]["vllm"]


def test_a_group_size_goes_to_the_formats_that_have_groups() -> None:
    spec = resolve_model("llama-3.1-8b")
    formats = weight_formats(spec, ("fp8", "awq"), group_size=32)
    sizes = {each.name: each.spec.quantization.group_size for each in formats if each.spec.quantization}
    assert sizes == {"fp8": None, "awq": 32}
    with pytest.raises(UsageError, match="is for weights in groups"):
        weight_formats(spec, ("fp8",), group_size=32)


@pytest.mark.parametrize("option", ["--ctx", "--max-model-len"])
def test_the_longest_sequence_has_the_names_that_estimate_has(option: str, printed_by: Callable[..., str]) -> None:
    said = []
    for name in ("--ctx-max", option):
        said.append(printed_by("plan", "gpt2", "--users", "4", "--gpu", "l4", name, "512"))
    assert said[0] == said[1] and "sequences of 512 on average, 512 at most" in said[0]

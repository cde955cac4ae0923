"""What a sweep recommends and the commands it gives: every knob, the model as given, no engine that would refuse."""

from __future__ import annotations

import math
import shlex
from typing import Any

import pytest
from test_sweep_boundaries import row
from test_sweep_slo_search import BASE, LEVEL, row_of, search_of

from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.vllm_refusals import vllm_refusal
from kvplan.runs.answers.best_settings import best_settings
from kvplan.runs.answers.deploy import deployment_of, model_to_deploy
from kvplan.runs.answers.slo_result import search_results
from kvplan.runs.answers.stand_in import stand_in
from kvplan.runs.trials import Load
from kvplan.settings import ServingSettings
from kvplan.sweeps.manifest import model_parts
from kvplan.sweeps.schedules.schedule import simulate


def test_the_command_carries_the_kv_dtype_and_every_other_knob() -> None:
    commands = deployment_of(row(kv_cache_dtype="fp8", max_num_batched_tokens=256), "gpt2").commands
    words = shlex.split(commands["vllm"])
    for option, value in (("--kv-cache-dtype", "fp8"), ("--dtype", "float32"), ("--max-num-batched-tokens", "256")):
        assert words[words.index(option) + 1] == value
    assert 'kv_cache_dtype="fp8"' in commands["kvplan"] and "max_num_batched_tokens=256" in commands["kvplan"]


def test_a_cache_in_the_activations_dtype_is_left_to_the_engine() -> None:
    assert "kv-cache-dtype" not in deployment_of(row(kv_cache_dtype="float32"), "gpt2").commands["vllm"]


def test_the_python_command_gives_the_memory_that_the_share_is_of() -> None:
    commands = deployment_of(row(device="cpu", device_memory_bytes=3 * 1024**3 // 2), "gpt2").commands
    assert 'device="cpu", device_memory="1536MiB"' in commands["kvplan"]
    assert "device_memory" not in deployment_of(row(device="cuda", device_memory_bytes=1), "gpt2").commands["kvplan"]


def test_what_several_engines_did_is_not_deployed_as_one() -> None:
    commands = deployment_of(row(data_parallel_size=2), "gpt2").commands
    assert list(commands) == ["vllm"] and commands["vllm"].endswith(" --data-parallel-size 2")


def test_the_command_names_a_file_by_its_path_and_quotes_it() -> None:
    """The title inside a GGUF, or the name of a directory's architecture, is nothing that an engine could load."""

    def model(asked: str) -> str:
        return model_to_deploy({"model": {"id": "SmolLM2 135M Instruct"}, "options": {"model": asked}})  # type: ignore[typeddict-item]

    assert model("/data/my models/smol.gguf") == "/data/my models/smol.gguf"
    assert model("/data/smol") == "/data/smol"
    assert model("/data/smol/config.json") == "/data/smol"
    assert model("smollm2") == "SmolLM2 135M Instruct"
    commands = deployment_of(row(), model("/data/my models/smol.gguf")).commands
    assert shlex.split(commands["vllm"])[2] == "/data/my models/smol.gguf"
    assert 'model="/data/my models/smol.gguf"' in commands["kvplan"]


def test_block_sizes_that_vllm_refuses_get_no_vllm_command() -> None:
    for size in (7, 8):
        (best, *_) = best_settings([row(block_size=size)], "gpt2")
        assert list(best["commands"]) == ["kvplan"]
        assert f"multiples of 16, not {size}" in best["reason"] and best["refusals"]
    (best, *_) = best_settings([row(block_size=32)], "gpt2")
    assert list(best["commands"]) == ["kvplan", "vllm"] and not best["refusals"]


@pytest.mark.parametrize(("version", "size", "is_refused"), [
    ("0.32", 8, True), ("0.32", 7, True), ("0.32", 48, False), ("0.8.0", 8, True), ("0.6", 8, False), ("0.6", 7, True),
])  # fmt: skip
def test_each_release_of_vllm_knows_its_block_sizes(version: str, size: int, is_refused: bool) -> None:
    assert (vllm_refusal(ServingSettings(block_size=size), vllm_release(version)) is not None) == is_refused


def test_a_recommendation_that_clipped_its_requests_says_so() -> None:
    assert "3 requests had to be clipped" in best_settings([row(num_clipped_prompts=3)], "gpt2")[0]["reason"]
    assert "clipped" not in best_settings([row()], "gpt2")[0]["reason"]


def test_noise_is_not_recommended() -> None:
    """The same steps at three contexts: the shortest was timed fastest by luck, and the longest has the most room."""
    speeds = {384: 100.0, 640: 106.0, 1024: 101.0}
    rows = [
        row(max_model_len=context, output_throughput=speed, trial_id=str(context)) for context, speed in speeds.items()
    ]
    best = best_settings(rows, "gpt2")[0]
    assert best["trial_id"] == "1024"
    assert best["num_alike"] == 3 and "alike within 6 %" in best["reason"] and "most room" in best["reason"]


def test_three_percent_are_noise_where_nothing_ran_twice() -> None:
    def best_of(fast: float) -> Any:
        rows = [row(block_size=16, output_throughput=100.0), row(block_size=32, output_throughput=fast)]
        return best_settings(rows, "gpt2")[0]["settings"]["block_size"]

    assert best_of(102.0) == 16  # the default, within noise
    assert best_of(105.0) == 32


def test_a_measured_spread_counts_as_noise() -> None:
    """Runs of one setting lie 8 % apart here, so a setting that is 5 % faster is not known to be."""
    runs = {16: (100.0, 108.0, 104.0), 32: (105.0, 113.0, 109.0)}
    rows = [
        row(block_size=size, output_throughput=speed, run_number=number)
        for size, speeds in runs.items()
        for number, speed in enumerate(speeds, start=1)
    ]
    assert best_settings(rows, "gpt2")[0]["settings"]["block_size"] == 16


def test_a_busy_machine_does_not_hide_the_best_setting() -> None:
    """Block 16 was fastest in the one trial that had the machine to itself; at other contexts others used it."""
    rows = [
        row(block_size=16, max_model_len=1024, output_throughput=165.0, other_cpu_pct=2.0),
        row(block_size=16, max_model_len=640, output_throughput=20.0, other_cpu_pct=69.0),
        row(block_size=16, max_model_len=384, output_throughput=34.0, other_cpu_pct=48.0),
        row(block_size=32, max_model_len=1024, output_throughput=152.0, other_cpu_pct=2.0),
    ]
    best = best_settings(rows, "gpt2")[0]
    assert (best["settings"]["block_size"], best["settings"]["max_model_len"]) == (16, 1024)
    assert best["noise_pct"] == 3.0


def test_a_search_has_one_answer() -> None:
    """At 8 in flight two runs of three keep the level, at 7 all do: sentence, recommendation and command all say 8."""

    def keeps(load: Load, run_number: int) -> bool:
        number = load.max_concurrency or 0
        return number <= 7 or (number == 8 and run_number != 2)

    search = search_of("max_concurrency", 7)
    rows = [row_of(step, keeps) for step in simulate(search, lambda step: row_of(step, keeps))]
    for found in rows:  # what vanishes in a world of made-up rows
        found |= {"failed": 0, "num_clipped_prompts": 0, "median_tpot_ms": 30.0, "frag_pct": 2.0}
    (result,) = search_results(rows, LEVEL)
    assert result.keeps == 8
    assert "met up to max_concurrency 8 (in 2 of 3 runs; in every run up to 7; at 9 in 0 of 3 runs)" in result.sentence
    (best,) = best_settings(rows, "gpt2", [result])
    assert best["load"]["max_concurrency"] == 8
    assert best["settings"]["max_num_seqs"] == BASE.max_num_seqs
    words = shlex.split(best["commands"]["vllm"])
    assert words[words.index("--max-num-seqs") + 1] == "8"


def test_the_command_of_a_search_admits_no_more_than_its_answer() -> None:
    """16 sequences were allowed and 6 in flight kept the level: --max-num-seqs 6 is what keeps it."""

    def keeps(load: Load, _: int) -> bool:
        return (load.max_concurrency or 0) <= 6

    search = search_of("max_concurrency", 6)
    rows = [row_of(step, keeps) for step in simulate(search, lambda step: row_of(step, keeps))]
    rows = [found | {"failed": 0, "num_clipped_prompts": 0, "max_num_seqs": 16} for found in rows]
    (best,) = best_settings(rows, "gpt2", search_results(rows, LEVEL))
    assert "--max-num-seqs 6 " in best["commands"]["vllm"] and "max_num_seqs=6," in best["commands"]["kvplan"]
    assert "6 requests in flight, so the commands admit max_num_seqs 6" in best["reason"]


def test_a_search_over_rates_leaves_the_batch_alone() -> None:
    def keeps(load: Load, _: int) -> bool:
        return not math.isinf(load.request_rate or 0.0) and (load.request_rate or 0.0) <= 3.0

    search = search_of("request_rate", 3.0)
    rows = [row_of(step, keeps) for step in simulate(search, lambda step: row_of(step, keeps))]
    rows = [found | {"failed": 0, "num_clipped_prompts": 0} for found in rows]
    (result,) = search_results(rows, LEVEL)
    (best,) = best_settings(rows, "gpt2", [result])
    assert best["load"]["request_rate"] == result.keeps
    assert f"--max-num-seqs {BASE.max_num_seqs} " in best["commands"]["vllm"]


def on_gpu(**changes: Any) -> Any:
    return row(device="cuda", engine="kvplan", dtype="bfloat16", quantization="auto", max_model_len=4096) | changes


@pytest.mark.parametrize(
    ("model", "rows", "longest", "words"),
    [
        ("llama-3.1-8b", [on_gpu()], 4000, "close enough to stand in for vLLM's (a dense model in 16 bits on one GPU"),
        ("llama-3.1-8b", [on_gpu(max_model_len=131072)], 8192, "close enough"),
        ("llama-3.1-8b", [on_gpu(max_model_len=131072)], 30000, "because of requests of up to 30,000 tokens (they do"),
        ("llama-3.1-8b", [on_gpu(max_model_len=8192)], 30000, "close enough"),
        ("mixtral-8x7b", [on_gpu()], 4000, "do not stand in for vLLM's, because of experts (they do for"),
        ("deepseek-v3", [on_gpu()], 4000, "because of experts, latent attention, weights published in few bits"),
        ("llama-3.1-8b", [on_gpu(), on_gpu(tensor_parallel_size=2)], 4000, "in 1 of 2 settings"),
        ("llama-3.1-8b", [on_gpu(), on_gpu(tensor_parallel_size=2)], 4000, "For the others, with 2 GPUs, measure"),
        ("llama-3.1-8b", [on_gpu(quantization="int4")], 4000, "because of quantization int4"),
        ("llama-3.1-8b", [on_gpu(dtype="float32")], 4000, "because of dtype float32"),
        ("llama-3.1-8b", [on_gpu(model_impl="transformers")], 4000, "because of a class of transformers"),
    ],
)  # fmt: skip
def test_what_speeds_on_a_gpu_say_of_vllm(model: str, rows: list[Any], longest: int, words: str) -> None:
    """By what the model is made of, the settings that were timed, and the requests that they served."""
    manifest: Any = {
        "model": {"parts": model_parts(resolve_model(model))},
        "workload": {"longest_request_tokens": longest},
    }
    found = stand_in(manifest, rows)
    assert found is not None
    assert words in found["sentence"]
    assert ("--engine vllm" in found["sentence"]) == (found["num_close"] < found["num_settings"])


@pytest.mark.parametrize(
    "changes", [{"device": "cpu"}, {"engine": "vllm"}, {"load_format": "none"}, {"status": "oom_kv_init"}]
)
def test_nothing_is_said_of_vllm_where_no_gpu_was_timed(changes: dict[str, Any]) -> None:
    manifest: Any = {"model": {"parts": []}, "workload": {}}
    assert stand_in(manifest, [on_gpu(**changes)]) is None
    assert stand_in({"model": {}, "workload": {}}, [on_gpu()]) is None  # type: ignore[typeddict-item]  # an earlier version's

"""Every start-up log at hand: what it states, how it ended, which GPU it is of, and what one teaches of another."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_rows import data_rows

import kvplan
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.vllm.learned import predict_as_learned
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.explaining.explanation import LogAccount, difference_gib, explain_log
from kvplan.explaining.learned import learn
from kvplan.explaining.startup_log import parse_startup_log
from kvplan.explaining.which_gpu import fitting_gpus
from kvplan.settings import KNOBS, ServingSettings
from kvplan.units import GIB

LOGS = Path(__file__).resolve().parents[1] / "data" / "startup_logs"


def explained(row: dict[str, Any]) -> LogAccount:
    log = parse_startup_log((LOGS / f"{row['log']}.log").read_text(encoding="utf-8"))
    model = row.get("model") or log.model
    spec = None if model is None or model.startswith(("/", "zai-org")) else resolve_model(model)
    return explain_log(log, spec, find_gpu(row["gpu"]) if "gpu" in row else None)


@pytest.mark.parametrize("row", data_rows("published_logs"), ids=lambda row: row["log"])
def test_a_published_log_is_read_and_answered(row: dict[str, Any]) -> None:
    answer = explained(row)
    settings, stopped = row.get("settings", {}), row.get("stopped", "")
    assert {name: getattr(answer.log.settings, name) for name in settings} == settings
    assert (answer.log.stopped or "").startswith(stopped) and bool(answer.log.stopped) == bool(stopped)
    said = "\n".join(change.sentence for change in answer.changes)
    assert [words for words in row.get("says", ()) if words not in said] == []
    assert [words for words in row.get("never", ()) if words in said] == []
    if "gpu_is" in row:
        assert answer.gpu is not None and answer.gpu.id == row["gpu_is"]


EVERY = sorted(path.stem for path in LOGS.glob("*.log"))
_SHARE = re.compile(r"--(?:gpu-memory-utilization|mem-fraction-static)(?: to| above)? (\d+(?:\.\d+)?)")
_GPUS = re.compile(r"use (\d+) GPUs in all instead of (\d+)")


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("gpu", ["gb10", "l4"])
def test_no_advice_is_impossible(name: str, gpu: str) -> None:
    log = parse_startup_log((LOGS / f"{name}.log").read_text(encoding="utf-8"))
    answer = explain_log(log, resolve_model("qwen3.5-27b"), find_gpu(gpu))
    used = log.settings.gpu_memory_utilization
    for change in answer.changes:
        for share in map(float, _SHARE.findall(change.sentence)):
            assert share < 1
            assert "raise" not in change.sentence or used is None or share > used
        for more, now in _GPUS.findall(change.sentence):
            assert int(more) > int(now) >= log.settings.tensor_parallel_size
    assert all(KNOBS[name].check(getattr(log.settings, name)) is None for name in ("max_num_seqs", "max_model_len"))


def test_from_027_on_the_peak_has_the_graphs_in_it() -> None:
    """What was printed: 110.06 - 55.99 - 3.78 = 50.29, of which the graphs' estimate is 1.94 and the weights 51.35."""
    memory = parse_startup_log((LOGS / "vllm-0.27-qwen3.8-27b-gb10.log").read_text(encoding="utf-8")).memory
    apart = (memory.consumed_bytes, memory.weight_bytes, memory.non_torch_bytes, memory.activation_bytes)
    assert [round((number or 0) / GIB, 2) for number in apart] == [55.99, 51.35, 4.64, 1.84]
    graphs = (memory.graph_estimate_bytes, memory.graph_bytes)
    assert [round((number or 0) / GIB, 2) for number in graphs] == [1.94, 0.94]


def test_a_peak_whose_graphs_are_not_printed_is_compared_with_both() -> None:
    text = (
        "Initializing a V1 LLM engine (v0.31.0) with config: model='org/m', enforce_eager=False\n"
        "Free memory on device (78.84/79.25 GiB) on startup. Desired GPU memory utilization is (0.92, 72.91 GiB). "
        "Actual usage is 15.26 GiB for consumed memory (weights + non-torch), 1.44 GiB for peak activation, and 0.23 "
        "GiB for CUDAGraph memory.\nModel loading took 15.0 GiB memory\n"
    )
    log = parse_startup_log(text)
    assert log.memory.activation_bytes is None
    answer = explain_log(log, resolve_model("llama-3.1-8b"), find_gpu("a100-80gb-sxm"))
    parts = {part.name: part for part in answer.parts}
    assert "activations (peak)" not in parts
    together = parts["activations and graphs"]
    assert together.logged_bytes == round(1.44 * GIB)
    assert abs(difference_gib(together) or 9) < 0.75
    eager = parse_startup_log(text.replace("enforce_eager=False", "enforce_eager=True"))
    assert eager.memory.activation_bytes == round(1.44 * GIB)


def test_before_027_the_peak_is_the_activations() -> None:
    memory = parse_startup_log((LOGS / "vllm-0.19-llama-3.1-8b-h100.log").read_text(encoding="utf-8")).memory
    assert (memory.consumed_bytes, memory.activation_bytes) == (None, round(1.89 * GIB))


TOTAL = "Free memory on device (1.0/{} GiB) on startup. Desired GPU memory utilization is (0.9, 1.0 GiB).\n"


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (TOTAL.format("79.19"), ["h100-sxm"]),
        (TOTAL.format("119.63"), ["gb10"]),
        (TOTAL.format("121.69"), ["gb10"]),
        (TOTAL.format("31.37"), ["rtx-5090", "rtx-pro-4500"]),
        (TOTAL.format("178.35"), ["b200"]),
        ("HIP out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which", []),
        (
            "HIP out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 191.98 GiB of which",
            ["mi300x"],
        ),
        ("configs/E=256,N=512,device_name=NVIDIA_GB10.json\nAvailable KV cache memory: 1.0 GiB", ["gb10"]),
        (
            "E=128,N=704,device_name=NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition,dtype=fp8_w8a8.json",
            ["rtx-pro-6000"],
        ),
        ("GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n" + TOTAL.format("79.25"), ["a100-80gb-sxm"]),
        ("|   0  NVIDIA GeForce RTX 3060          On  |\n" + TOTAL.format("11.63"), ["rtx-3060"]),
        ("On 2x DGX Spark (TP=2), Available KV cache memory: 22.5 GiB", ["gb10"]),
        ("2 x RTX 3090, vLLM 0.21.0\nAvailable KV cache memory: 22.5 GiB", ["rtx-3090"]),
        ("It works on an A100, but not on an H20\nAvailable KV cache memory: 22.5 GiB", []),
        ("0: NVIDIA GeForce RTX 5070 Ti 16303MiB\n1: NVIDIA GeForce RTX 5090 D 32607MiB", []),
    ],
)
def test_one_profile_or_none(text: str, ids: list[str]) -> None:
    assert [gpu.id for gpu in fitting_gpus(parse_startup_log(text)).profiles] == ids


@pytest.mark.parametrize(
    ("total", "among"),
    [
        ("79.25", ["a100-80gb-sxm", "h100-sxm", "h100-pcie"]),
        ("11.63", ["rtx-3060", "rtx-3080-ti", "rtx-4070"]),
        ("44.42", ["l40s", "l40", "a40"]),
        ("23.55", ["rtx-3090", "rtx-4090"]),
    ],
)
def test_cards_of_one_size_are_not_told_apart(total: str, among: list[str]) -> None:
    log = parse_startup_log(TOTAL.format(total) + "Available KV cache memory: 2.0 GiB")
    answer = explain_log(log, None, None)
    assert answer.gpu is None
    assert {gpu.id for gpu in fitting_gpus(log).profiles} >= set(among)
    assert any(f"A GPU with {total} GiB, as in the log, may be" in note for note in answer.notes)


@pytest.mark.parametrize(
    ("line", "ids"),
    [
        (
            "(Worker pid=71580) WARNING 08-29 10:54:14 [symm_mem.py:67] SymmMemCommunicator: Device capability 8.9 not "
            "supported, communicator is not available.",
            ["rtx-4090", "rtx-4090-d"],
        ),
        ("file: /root/.cache/vllm/flashinfer_autotune_cache/0.6.13/86/f/autotune_configs.json", ["a5000", "rtx-3090"]),
        ("file: /root/.cache/vllm/flashinfer_autotune_cache/0.6.13/121a/f/autotune_configs.json", []),
    ],
)
def test_a_compute_capability_tells_cards_of_one_size_apart(line: str, ids: list[str]) -> None:
    """The first line is of results/coldstart/server_A.log of vitalyrodnenko/replay-sim (0.28.0)."""
    log = parse_startup_log(TOTAL.format("23.52") + line + "\nAvailable KV cache memory: 10.65 GiB")
    found = {gpu.id for gpu in fitting_gpus(log).profiles}
    assert found >= set(ids)
    assert {gpu.compute_capability for gpu in fitting_gpus(log).profiles} <= {log.capability}


def test_nothing_is_compared_where_the_gpus_that_fit_differ() -> None:
    log = parse_startup_log("vLLM 0.25.1\n" + TOTAL.format("79.25") + "Available KV cache memory: 50.0 GiB")
    answer = explain_log(log, resolve_model("llama-3.1-8b"), None)
    assert answer.predicted.kv_cache_tokens is None
    assert all(part.predicted_bytes is None for part in answer.parts)
    assert "So nothing is compared." in answer.notes


def test_the_total_follows_from_two_shares_and_the_graphs_estimate() -> None:
    """0.10 GiB over 1.58 GiB of graphs: what a GPU of 94.97 GiB printed."""
    text = (
        "Estimated CUDA graph memory: 1.58 GiB total\nThe current --gpu-memory-utilization=0.9500 is equivalent to "
        "--gpu-memory-utilization=0.9334 without CUDA graph memory profiling.\n"
    )
    low, high = parse_startup_log(text).memory.total_range or (0, 0)
    assert low < 94.97 * 2**30 < high
    assert (high - low) / low < 0.02
    small = text.replace("1.58", "0.45").replace("0.9334", "0.9295")
    (low, high), near = parse_startup_log(small).memory.total_range or (0, 0), 22.06 * 2**30
    assert low < near < high, "22.06 x (0.95 - 0.9295) = 0.452"


def test_bfloat16_excludes_cards_that_have_none() -> None:
    text = TOTAL.format("15.75")
    assert any(gpu.id.startswith("v100") for gpu in fitting_gpus(parse_startup_log(text)).profiles)
    brief = fitting_gpus(parse_startup_log(text + "dtype=torch.bfloat16")).profiles
    assert brief and not any(gpu.id.startswith("v100") for gpu in brief)


MINIMAX = (
    "vllm serve MiniMaxAI/MiniMax-M2.7-AWQ -tp 2 --gpu-memory-utilization 0.8 --max-model-len 196608\n"
    "vLLM 0.29.1rc1.dev17+gd2d649e67\nAvailable KV cache memory: 22.5 GiB\n"
)
QWEN2 = (
    "Initializing a V1 LLM engine (v0.10.1.1) with config: model='Qwen/Qwen2-7B-Instruct'\nmax_model_len=16384, "
    "gpu_memory_utilization=0.25, max_num_batched_tokens=2048\nModel loading took 14.2488 GiB\nGraph capturing "
    "finished in 9 secs, took 0.50 GiB\nAvailable KV cache memory: 5.01 GiB\n"
)

PAIRS = [
    # log, model, GPU, what the second start had otherwise; its KV tokens as printed
    # github.com/eugr/spark-vllm-docker issue 396: 0.8 was refused, 0.85 started.
    (MINIMAX, "MiniMaxAI/MiniMax-M2.7-AWQ", "gb10", {"gpu_memory_utilization": 0.85}, 240_816),
    # Rows V124 and V125 of vllm_startups.csv.
    (QWEN2, "Qwen/Qwen2-7B-Instruct", "a100-80gb-sxm", {"gpu_memory_utilization": 0.5}, 464_848),
]


@pytest.mark.parametrize(("text", "model", "gpu", "changes", "tokens"), PAIRS, ids=["minimax", "qwen2"])
def test_the_second_start_is_nearer_with_the_log_of_the_first(
    text: str, model: str, gpu: str, changes: dict[str, float], tokens: int, tmp_path: Path
) -> None:
    log = tmp_path / "first.log"
    log.write_text(text, encoding="utf-8")
    first = parse_startup_log(text)
    with_log = kvplan.estimate(model, gpu=gpu, from_log=log, **changes)
    apart = {name: getattr(first.settings, name) for name in ("tensor_parallel_size", "max_num_batched_tokens")}
    without = kvplan.estimate(
        model,
        gpu=gpu,
        ctx=first.settings.max_model_len,
        engine=f"vllm@{first.version}",
        **{name: value for name, value in apart.items() if value is not None},
        **changes,
    )
    near, far = (each.answer.deployments[0].kv_cache_tokens for each in (with_log, without))
    assert abs(near - tokens) < abs(far - tokens)
    assert near == pytest.approx(tokens, rel=0.005)
    narrow, wide = (each.answer.deployments[0].kv_cache_tokens_range for each in (with_log, without))
    assert narrow is not None and wide is not None
    assert narrow[0] <= tokens <= narrow[1]
    assert narrow[1] - narrow[0] < 0.7 * (wide[1] - wide[0])


def test_what_a_log_has_apart_is_kept_where_settings_leave_it() -> None:
    log = parse_startup_log((LOGS / "vllm-0.27-qwen3.8-27b-gb10.log").read_text(encoding="utf-8"))
    spec, gpu = resolve_model("qwen3.5-27b"), find_gpu("gb10")
    learned = learn(log, spec, gpu)
    plain = predict_vllm(spec, gpu, log.settings, "0.27.1").rank
    assert learned.weight_bytes == round(51.35 * GIB) - plain.weight_bytes
    assert (
        learned.non_torch_bytes == round(55.99 * GIB) - round(51.35 * GIB) - plain.non_torch_bytes - plain.state_bytes
    )
    assert abs(learned.rest_bytes) < 0.02 * GIB, "the parts add up: only rounding is left"
    again = predict_as_learned(learned, spec, gpu, log.settings, "0.27.1").prediction
    assert again.rank.available_kv_bytes == pytest.approx(50.29 * GIB, abs=2)
    assert again.kv_cache_tokens == pytest.approx(820_013, rel=0.001)


def test_what_settings_decide_is_not_kept_for_others() -> None:
    log = parse_startup_log((LOGS / "vllm-0.27-qwen3.8-27b-gb10.log").read_text(encoding="utf-8"))
    spec, gpu = resolve_model("qwen3.5-27b"), find_gpu("gb10")
    learned = learn(log, spec, gpu)
    other = predict_as_learned(learned, spec, gpu, ServingSettings(max_num_seqs=16, max_model_len=32768), "0.27.1")
    assert "Not kept, as settings that decide it differ: activations, CUDA graphs." in other.notes
    two = predict_as_learned(learned, spec, gpu, ServingSettings(tensor_parallel_size=2), "0.27.1")
    assert two.notes == ("Nothing of the log is kept: it is of another GPU or other parallel sizes.",)
    assert two.prediction == predict_vllm(
        spec, gpu, ServingSettings(tensor_parallel_size=2, device_memory_bytes=learned.device_memory_bytes), "0.27.1"
    )


def test_the_command_takes_settings_and_gpu_from_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = LOGS / "vllm-0.27-qwen3.8-27b-gb10.log"
    assert main(["estimate", "qwen3.5-27b", "--from-log", str(log), "--gpu-memory-utilization", "0.8"]) == 1
    shown = capsys.readouterr()
    assert "Kept of the log, against what is predicted of it: weights " in shown.err
    assert main(["estimate", "qwen3.5-27b", "--from-log", str(log), "--ctx", "128k", "--json"]) == 0
    shown = capsys.readouterr()
    assert '"gpu": "gb10"' in shown.out and "vllm@0.27.1" in shown.out


def test_the_model_is_the_logs_where_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said_by: Callable[..., str]
) -> None:
    log = LOGS / "vllm-0.27-qwen3.8-27b-gb10.log"
    named = kvplan.estimate("qwen3.8-27b", from_log=log, ctx="32k")
    assert kvplan.estimate(from_log=log, ctx="32k").to_dict() == named.to_dict()
    assert main(["estimate", "--from-log", str(log), "--ctx", "32k", "--json"]) == 0
    shown = capsys.readouterr()
    assert "Model taken to be qwen3.8-27b, which the log names." in shown.err
    assert json.loads(shown.out) == named.to_dict()
    private = tmp_path / "start.log"
    for words, said in (("model='/srv/ours'", "is of /srv/ours, which is not known here"), ("", "does not name its")):
        private.write_text(f"{words}\nModel loading took 3.0 GiB\nAvailable KV cache memory: 5.01 GiB\n")
        assert main(["estimate", "--from-log", str(private), "--gpu", "l4"]) == 2
        shown = capsys.readouterr()
        assert said in shown.err and "hint: name the model" in shown.err
    assert "Missing argument 'MODEL...'" in said_by("estimate")


def test_a_log_that_teaches_nothing_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "start.log"
    for text, words in (
        ("Model loading took 3.0 GiB\n", "does not tell its GPU"),
        ("device_name=NVIDIA_GB10.json\nModel loading took 3.0 GiB\n", "has no KV cache that follows from a share"),
        ((LOGS / "vllm-0.28-cpu-opt-125m.log").read_text(encoding="utf-8"), "does not tell its GPU"),
    ):
        log.write_text(text, encoding="utf-8")
        with pytest.raises(KvplanError, match=words):
            kvplan.estimate("gpt2", from_log=log)
    llama = LOGS / "vllm-0.19-llama-3.1-8b-h100.log"
    with pytest.raises(UsageError, match=r"is of meta-llama/Llama-3\.1-8B-Instruct, not of Qwen/Qwen3-8B"):
        kvplan.estimate("qwen3-8b", from_log=llama)
    with pytest.raises(UsageError, match="By its memory the log is not of RedHatAI"):
        kvplan.estimate("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", from_log=llama)
    with pytest.raises(UsageError, match="one model on one kind of GPU"):
        kvplan.estimate("gpt2", from_log=log, gpu=["l4", "h100"])
    with pytest.raises(UsageError, match="Only a log of vLLM on a GPU"):
        kvplan.estimate("gpt2", from_log=LOGS / "sglang-qwq-32b-tp4-l4.log", gpu="l4")

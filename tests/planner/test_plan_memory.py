"""What a plan has in memory besides: weights in the host's, read over the bus by each step, and slots of adapters."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from kvplan.catalog.devices.gpu_profile import REACHED_SHARE, host_bytes_per_second
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.errors import KvplanError
from kvplan.estimate.adapters import vllm_slot_bytes
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.queueing.steps import OffloadedSteps
from kvplan.estimate.speed.simulation.interface import GroupClock
from kvplan.estimate.speed.steps.work import model_work
from kvplan.settings import ServingSettings

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


def test_it_lets_a_model_fit_that_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "qwen3-14b", "--gpu", "rtx-4090", "--max-gpus", "1", "--users", "1", "--ctx-max", "4k"]
    words += ["--quantization", "published", "--kv-cache-dtype", "auto"]
    assert main(words) == 1
    assert main([*words, "--cpu-offload-gb", "12"]) == 0
    assert "Rent 1 x rtx-4090" in capsys.readouterr().out


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


def run(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(shlex.split(words))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_slots_of_adapters_are_weights_of_every_gpu_and_options_of_the_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "plan llama-3.1-8b --users 4 --ctx-avg 2k --gpu h100 --tp 1,2 --json"
    plain = json.loads(run(words, capsys)[1])
    document = json.loads(run(f"{words} --max-loras 8 --max-lora-rank 32", capsys)[1])
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

"""Adapters in a plan: their slots in every candidate's memory, and in the commands."""

from __future__ import annotations

import json
import shlex

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.estimate.adapters import vllm_slot_bytes
from kvplan.settings import ServingSettings


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

"""Settings that vLLM does not start with: refused in one sentence, with what it takes instead."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.vllm import latest_vllm
from kvplan.catalog.speculation.reading import with_speculation
from kvplan.catalog.vllm_refusals import LORA_RANKS, vllm_refusal
from kvplan.cli import main
from kvplan.errors import UsageError
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.estimate.weights import named_format
from kvplan.planner.question.request import PlanRequest
from kvplan.planner.search.plan import make_plan
from kvplan.settings import ServingSettings

LLAMA = resolve_model("llama-3.1-8b")


def start(gpu: str = "h100-sxm", version: str = "latest", **settings: object) -> ServingSettings:
    asked = ServingSettings(max_model_len=8192, **settings)  # type: ignore[arg-type]
    return predict_vllm(LLAMA, find_gpu(gpu), asked, version).settings.serving


@pytest.mark.parametrize("version", ["latest", "0.6.3"])
def test_a_step_holds_a_token_of_each_sequence(version: str) -> None:
    with pytest.raises(
        UsageError, match=r"vLLM takes no max_num_batched_tokens \(16\) below max_num_seqs \(256\)\."
    ) as error:
        start(version=version, max_num_seqs=256, max_num_batched_tokens=16)
    assert error.value.hint == "use --max-num-batched-tokens 256 or more, or --max-num-seqs 16 or less"
    assert start(version=version, max_num_batched_tokens=16).max_num_seqs == 16
    assert start(max_num_seqs=256, max_num_batched_tokens=256).max_num_seqs == 256


def test_the_default_step_may_be_too_small_too() -> None:
    with pytest.raises(UsageError, match=r"max_num_batched_tokens \(2,048\) below max_num_seqs \(4,096\)"):
        start("l4", max_num_seqs=4096)


@pytest.mark.parametrize(("rank", "hint"), [(7, "--max-lora-rank 8 holds them"), (600, "one of 1, 8, 16")])
def test_adapters_have_one_of_a_few_ranks(rank: int, hint: str) -> None:
    with pytest.raises(UsageError, match=f"vLLM has no max_lora_rank {rank}") as error:
        start(max_lora_rank=rank)
    assert (error.value.hint or "").startswith(hint)
    assert all(vllm_refusal(ServingSettings(max_lora_rank=each)) is None for each in LORA_RANKS)
    assert vllm_refusal(ServingSettings(max_loras=0, max_lora_rank=rank)) is None


def test_room_for_no_adapter_is_a_contradiction() -> None:
    with pytest.raises(UsageError, match="enable_lora asks for room for adapters, max_loras 0 for none"):
        ServingSettings(enable_lora=True, max_loras=0).check()


def test_a_sentence_begins_with_the_name_as_it_is_written() -> None:
    with pytest.raises(UsageError, match=f"^vLLM {latest_vllm()} has no kv_cache_dtype float32"):
        start(kv_cache_dtype="float32", dtype="bfloat16")
    with pytest.raises(UsageError, match=r"^The attention kernels"):
        start(block_size=7)


def test_a_removed_drafter_is_refused(tmp_path: Path) -> None:
    """0.33.0 has no Medusa: SpeculativeMethod in vllm/config/speculative.py does not list it."""
    config = {"medusa_num_heads": 3, "medusa_num_layers": 1}
    (tmp_path / "medusa").mkdir()
    (tmp_path / "medusa" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    asked = ServingSettings(max_model_len=8192, speculative_model=str(tmp_path / "medusa"), num_speculative_tokens=3)
    drafting = with_speculation(LLAMA, asked).spec
    with pytest.raises(UsageError, match=r"^vLLM 0\.33\.0 has no speculative method medusa\.$"):
        predict_vllm(drafting, find_gpu("h100-sxm"), asked, "0.33.0")
    assert predict_vllm(drafting, find_gpu("h100-sxm"), asked, "0.32.0").settings.serving.num_speculative_tokens == 3


def test_a_shorter_draft_model_limits_the_length_from_033_on(tmp_path: Path, said_by: Callable[..., str]) -> None:
    """VllmConfig._limit_max_model_len_to_draft of 0.33.0; before, longer sequences went on without drafts."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8}
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "max_position_embeddings": 2048, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = ["estimate", "llama-3.1-8b", "--gpu", "h100-sxm", "--num-speculative-tokens", "3"]
    said = "vLLM 0.33.0 lowers max_model_len from 8,192 to 2,048, the longest of the draft model"
    for version, length, is_said in (("0.33.0", "8k", True), ("0.32.0", "8k", False), ("0.33.0", "2k", False)):
        more = ["--speculative-model", str(tmp_path), "--ctx", length, "--engine", f"vllm@{version}"]
        assert (said in said_by(*words, *more, code=0)) is is_said


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
PACKED = {"group_0": {"weights": {"num_bits": 4, "group_size": 128, "strategy": "group"}, "targets": ["Linear"]}}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": PACKED}


def run(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(shlex.split(f"{words} --gpu l4 --json"))
    return code, capsys.readouterr().err


def config(folder: Path, section: dict[str, Any], *, intermediate_size: int = 1536) -> Path:
    values = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "vocab_size": 4096}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "torch_dtype": "float16"}
    path = folder / "config.json"
    sizes = {"intermediate_size": intermediate_size, "max_position_embeddings": 4096}
    path.write_text(json.dumps(values | heads | sizes | {"quantization_config": section}))
    return path


@pytest.mark.parametrize("name", ["awq", "gptq", "int4"])
def test_groups_that_do_not_divide_a_width_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """SmolLM2 135M's layers are 576 wide: 4.5 groups of 128, which is the usual size, 9 of 64 and 18 of 32."""
    code, said = run(f"estimate smollm2-135m --quantization {name}", capsys)
    assert code == 2
    assert "has 576 inputs, which are no whole groups of 128: vLLM refuses such" in said
    assert "--group-size 32 or 64 or -1" in said
    for size in (64, 32, -1):
        assert run(f"estimate smollm2-135m --quantization {name} --group-size {size}", capsys)[0] == 0
    code, said = run(f"estimate smollm2-135m --quantization {name} --group-size 48", capsys)
    assert code == 2 and "There are no kernels for groups of 48." in said


def test_the_own_engine_cuts_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("estimate smollm2-135m --quantization awq --engine kvplan", capsys)[0] == 0


@pytest.mark.parametrize(
    ("section", "is_refused"), [(AWQ, True), (COMPRESSED, True), (GPTQ, False), (AWQ | {"group_size": 64}, False)]
)
def test_a_rank_must_have_whole_groups(
    section: dict[str, Any], is_refused: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1536 / 8 are 1.5 groups of 128, 3 of 64. GPTQ's kernels may hold scales of all ranks."""
    path = config(tmp_path, section)
    assert run(f"estimate {path} --tp 4", capsys)[0] == 0
    code, said = run(f"estimate {path} --tp 8", capsys)
    assert code == (2 if is_refused else 0)
    assert ("mlp.down_proj has 192 inputs on each GPU, which are no whole groups of 128" in said) is is_refused


def test_modules_that_are_left_alone_need_no_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = config(tmp_path, AWQ, intermediate_size=1600)
    assert run(f"estimate {refused}", capsys)[0] == 2
    left = config(tmp_path, AWQ | {"modules_to_not_convert": ["down_proj"]}, intermediate_size=1600)
    assert run(f"estimate {left}", capsys)[0] == 0


REFUSED = (
    "estimate qwen3.5-27b --gpu h100-sxm --quantization fp8-block --engine vllm@0.23 --gpu-memory-utilization 0.95 "
    "--ctx 262144"
)
SETTINGS = ServingSettings(gpu_memory_utilization=0.95, max_model_len=32768)


def predicted(
    model: str = "qwen3.5-27b", gpu: str = "h100-sxm", version: str = "0.23", **changes: object
) -> VllmPrediction:
    spec = resolve_model(model)
    if spec.quantization is None:
        spec = replace(spec, quantization=named_format("fp8-block"))
    return predict_vllm(spec, find_gpu(gpu), replace(SETTINGS, **changes), version)  # type: ignore[arg-type]


def test_the_published_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(f"{REFUSED} --json")) == 1
    printed = capsys.readouterr()
    found = json.loads(printed.out)["deployments"][0]
    assert not found["fits"]
    assert (found["max_num_seqs"], found["most_num_seqs"]) == (1024, found["num_blocks"])
    low, high = found["most_num_seqs_low"], found["most_num_seqs_high"]
    assert low <= 856 <= high
    assert found["limit"] == f"max_num_seqs 1,024 exceeds {found['num_blocks']} state blocks (--max-num-seqs {low})"
    assert f"hint: use --max-num-seqs {low}, or" in printed.err


def test_what_is_hinted_at_starts_and_is_sure(
    capsys: pytest.CaptureFixture[str], printed_by: Callable[..., str]
) -> None:
    main(shlex.split(f"{REFUSED} --json"))
    low = json.loads(capsys.readouterr().out)["deployments"][0]["most_num_seqs_low"]
    assert "refused" not in printed_by(f"{REFUSED} --max-num-seqs {low} --no-calibration")


def test_within_the_interval_it_may_be_refused(printed_by: Callable[..., str]) -> None:
    assert "may be refused: max_num_seqs 866, " in printed_by(f"{REFUSED} --max-num-seqs 866 --no-calibration")


@pytest.mark.parametrize(("version", "outcome"), [("0.19.1", "ok"), ("0.20.0", "rejected_seqs"), ("0.33", "ok")])
def test_releases(version: str, outcome: str) -> None:
    """0.19.1 captures fewer sizes; with 450 sequences 0.33, whose pool is the same, has blocks enough."""
    seqs = 450 if version == "0.33" else 1024
    assert predicted(version=version, max_num_seqs=seqs).outcome == outcome


def test_the_number_of_blocks_is_the_bound() -> None:
    most = predicted(max_num_seqs=866).most_num_seqs
    assert most is not None
    assert predicted(max_num_seqs=866).num_blocks == most
    assert predicted(max_num_seqs=most + 8).outcome == "rejected_seqs"


@pytest.mark.parametrize(
    ("model", "gpu", "version", "changes", "is_bound"),
    [
        ("qwen3.5-27b", "h100-sxm", "0.23", {}, True),
        ("qwen3.5-27b", "h100-sxm", "0.23", {"enforce_eager": True}, False),
        ("qwen3.5-27b", "h100-sxm", "0.23", {"num_speculative_tokens": 1}, True),
        ("qwen3.5-27b", "l40s", "0.23", {"num_speculative_tokens": 1, "kv_cache_dtype": "fp8"}, False),
        ("qwen3.5-27b", "l40s", "0.33", {"num_speculative_tokens": 1, "kv_cache_dtype": "fp8"}, True),
        ("qwen3.5-27b", "cpu", "0.33", {"device_memory_bytes": 200 << 30}, False),
        ("falcon-mamba-7b", "h100-sxm", "0.23", {}, True),
        ("qwen3-32b", "h100-sxm", "0.23", {}, False),
        ("gemma-3-27b", "h100-sxm", "0.23", {}, False),
    ],
)
def test_only_states_in_captured_steps_are_bound(
    model: str, gpu: str, version: str, changes: dict[str, object], is_bound: bool
) -> None:
    """Eager steps, CPUs, and drafts that FlashInfer's kernels do not take in whole captured steps are not."""
    assert (predicted(model, gpu, version, **changes).most_num_seqs is not None) == is_bound


@pytest.mark.parametrize(("users", "rate"), [(40, None), (None, 20.0)])
def test_a_plan_chooses_what_starts(users: int | None, rate: float | None) -> None:
    """Under a rate the search begins with 1,024 sequences, which a pool of this size has no blocks for."""
    request = PlanRequest(
        gpus=(find_gpu("h100-sxm"),),
        num_users=users,
        requests_per_second=rate,
        input_tokens=2000,
        output_tokens=200,
        max_gpus=4,
        engine=EngineChoice("vllm", "0.23"),
        quantizations=("fp8-block",),
    )
    found = make_plan(resolve_model("qwen3.5-27b"), request)
    assert found.deployments
    for each in found.deployments:
        most = each.prediction.most_num_seqs
        assert most is not None
        assert each.prediction.fits
        assert each.prediction.settings.serving.max_num_seqs <= most

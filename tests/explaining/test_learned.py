"""What one start-up teaches of another: pairs that were published of one model and GPU with other settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kvplan
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.vllm.learned import predict_as_learned
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.explaining.learned import learn
from kvplan.explaining.startup_log import parse_startup_log
from kvplan.settings import ServingSettings
from kvplan.units import GIB

LOGS = Path(__file__).resolve().parents[1] / "data" / "startup_logs"
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


def test_the_model_is_the_logs_where_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert main(["estimate"]) == 2
    assert "Missing argument 'MODEL...'" in capsys.readouterr().err


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

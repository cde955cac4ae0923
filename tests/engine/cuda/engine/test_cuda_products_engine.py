"""The engine over the emulated CUDA kernels with quantised weights and with adapters, and the memory that they take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_files import save_adapter
from engine_answers import drawn_prompts, logits_behind
from fake_gpu import FakeGpu, take_gpu
from gguf_files import GgufCheckpoint
from late_gpu import LateGpu
from peft import PeftModel
from quantised_checkpoints import make_checkpoint, small_llama
from small_models import greedy

from kvplan.catalog.models import resolve_model
from kvplan.estimate.kvplan.held_weights import held_weight_bytes
from kvplan.estimate.kvplan.memory import predict
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.settings import ServingSettings
from kvplan_engine import LLM, LoRARequest, SamplingParams

LIMITS: dict[str, Any] = {"max_num_batched_tokens": 32, "max_num_seqs": 5, "max_model_len": 64, "dtype": "float32"}
NUM_TOKENS = 5
PARAMS = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)


def prompts_of(*lengths: int) -> list[list[int]]:
    return drawn_prompts(lengths, seed=5)


def answers(llm: LLM, prompts: list[list[int]], adapters: list[LoRARequest | None] | None = None) -> list[list[int]]:
    outputs = llm.generate([{"prompt_token_ids": each} for each in prompts], PARAMS, lora_request=adapters)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize("name", ["gptq-act-order", "fp8"])
def test_quantised_weights_answer_as_the_dequantised_ones(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in steps of 32 rows, whose weights are widened, and replayed decode steps over the codes."""
    gpu = take_gpu(monkeypatch, FakeGpu())
    checkpoint = make_checkpoint(name, tmp_path)
    llm = LLM(str(checkpoint.path), **LIMITS)
    prompts = prompts_of(1, 9, 30, 17, 25)
    assert answers(llm, prompts) == greedy(checkpoint.model, prompts, NUM_TOKENS)
    assert llm.get_stats()["num_graph_replays"] >= NUM_TOKENS - 1
    assert {"quantised_product", "widen_rows"} <= gpu.runtime.launched


def test_fp8_blocks_are_multiplied_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of 32 rows in float8 on both sides, in replayed steps too; tokens as likely as the model says."""
    gpu = take_gpu(monkeypatch, FakeGpu())
    checkpoint = make_checkpoint("fp8-block", tmp_path)
    llm = LLM(str(checkpoint.path), **(LIMITS | {"dtype": "bfloat16"}))
    prompts = prompts_of(1, 9, 30, 17, 25)
    outputs = llm.generate([{"prompt_token_ids": each} for each in prompts], replace(PARAMS, logprobs=0))
    assert {"float8_product", "quantise_rows"} <= gpu.runtime.launched
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = list(output.outputs[0].token_ids)
        rows = torch.log_softmax(logits_behind(checkpoint.model, prompt, tokens), -1)
        expected = rows.gather(1, torch.tensor(tokens)[:, None]).sum()
        assert output.outputs[0].cumulative_logprob == pytest.approx(float(expected), abs=0.1 * NUM_TOKENS)


class Adapted:
    """A small model with three adapters, and what PEFT answers. The model itself is the adapter None."""

    def __init__(self, folder: Path) -> None:
        self.model = small_llama()
        self.path = folder / "model"
        self.model.save_pretrained(self.path)
        places = [save_adapter(self.model, folder / f"adapter-{i}", seed=i, r=1 + 3 * i) for i in range(3)]
        self.requests = [LoRARequest(path.name, str(path)) for path in places]

    def greedy(self, prompt: list[int], request: LoRARequest | None) -> list[int]:
        if request is None:
            return greedy(self.model, [prompt], NUM_TOKENS)[0]
        adapted = PeftModel.from_pretrained(self.model, request.path)
        (answer,) = greedy(adapted, [prompt], NUM_TOKENS)
        adapted.unload()
        return answer


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return Adapted(tmp_path_factory.mktemp("adapted"))


def lora_engine(adapted: Adapted, **settings: Any) -> LLM:
    return LLM(str(adapted.path), **(LIMITS | {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 3} | settings))


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
def test_adapters_in_one_batch_answer_as_pefts(adapted: Adapted, monkeypatch: pytest.MonkeyPatch, eager: bool) -> None:
    """Three adapters take turns in two slots, rows without one among them; then a batch of none at all."""
    gpu = take_gpu(monkeypatch, FakeGpu())
    llm = lora_engine(adapted, enforce_eager=eager)
    first, second, third = adapted.requests
    wanted = [first, None, second, third, first, None, third]
    prompts = prompts_of(1, 9, 30, 17, 5, 12, 3)
    assert answers(llm, prompts, wanted) == list(map(adapted.greedy, prompts, wanted))
    assert answers(llm, prompts[:2]) == greedy(adapted.model, prompts[:2], NUM_TOKENS)
    assert bool(llm.get_stats()["num_graph_replays"]) != eager
    assert {"lora_shrink", "lora_expand"} <= gpu.runtime.launched


def test_adapters_on_a_device_that_runs_behind_the_host(adapted: Adapted, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = take_gpu(monkeypatch, LateGpu())
    assert isinstance(gpu, LateGpu)
    llm = lora_engine(adapted, max_loras=3)
    first, second, third = adapted.requests
    wanted = [first, None, second, third]
    prompts = prompts_of(4, 20, 7, 40)
    answers(llm, prompts, wanted)  # the slots are filled
    llm.engine.reset_prefix_cache()
    with gpu.late(llm.engine):
        found = answers(llm, prompts, wanted)
    assert found == list(map(adapted.greedy, prompts, wanted))
    assert gpu.most_queued > 1


@pytest.mark.parametrize(
    ("settings", "name"),
    [({}, "awq"), ({"enable_lora": True, "max_loras": 3}, "awq"), ({"quantization": "none"}, "awq")],
    ids=["quantised", "quantised with adapters", "widened"],
)
def test_the_planner_predicts_the_workspace(
    settings: dict[str, Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = take_gpu(monkeypatch, FakeGpu())
    path = str(make_checkpoint(name, tmp_path).path)
    memory = LLM(path, enforce_eager=True, **(LIMITS | settings)).engine.memory
    asked = ServingSettings(**(LIMITS | settings))
    predicted = predict(resolve_model(path), asked, EngineDevice(gpu.total_bytes, kind="cuda"))
    assert (memory.activation_bytes, memory.weight_bytes) == (predicted.activation_bytes, predicted.weight_bytes)


def test_a_gguf_file_is_held_as_the_kernels_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its 6 bits in 8, its integers as float32: more than on a CPU, which the planner knows too."""
    path = GgufCheckpoint("q4_k_m", tmp_path).path
    gpu = take_gpu(monkeypatch, FakeGpu())
    memory = LLM(str(path), enforce_eager=True, **LIMITS).engine.memory
    spec = resolve_model(str(path))
    predicted = predict(spec, ServingSettings(**LIMITS), EngineDevice(gpu.total_bytes, kind="cuda"))
    assert (memory.activation_bytes, memory.weight_bytes) == (predicted.activation_bytes, predicted.weight_bytes)
    assert memory.weight_bytes > held_weight_bytes(spec, "float32", "auto")

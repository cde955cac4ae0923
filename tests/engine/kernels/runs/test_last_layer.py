"""The last layer's rows that nobody reads, adapters in one call, and steps of which arguments are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_files import save_adapter
from test_layer_run import GPT2, LLAMA, MODELS, make_engine
from transformers import LlamaConfig, LlamaForCausalLM

from kvplan_engine import LLM, Engine, LoRARequest, SamplingParams
from kvplan_engine.adapters.lora_linear import PackedLoraLinear
from kvplan_engine.execution.inputs.batch import BatchBuilder
from kvplan_engine.kernels.cpu.structures import LayersArgs
from kvplan_engine.layers import linear
from kvplan_engine.models.one_call import CpuLayerRun
from kvplan_engine.models.step_batch import StepBatch, StepSpace


def _run(
    config: dict[str, object], one_call: bool, narrowed: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[torch.Tensor], torch.Tensor, list[int | None]]:
    """Logits of each step, the pool afterwards, and how many rows each step's last layer had (None: all)."""
    engine = make_engine(config, "float32", one_call)
    runner = engine.serving.runner
    logits, rows = [], []
    if not narrowed:
        monkeypatch.setattr(BatchBuilder, "_batch", _of_all_rows)

    def forward(batch: StepBatch) -> torch.Tensor:
        result = type(runner).forward(runner, batch)
        logits.append(result.clone())
        rows.append(None if batch.sampled_attention is None else len(batch.sampled))
        return result

    monkeypatch.setattr(runner, "forward", forward)
    for index, length in enumerate((60, 3, 17, 1)):
        prompt = [(7 * index + 3 * i) % 190 for i in range(length)]
        engine.add_request(str(index), prompt, SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
    kv = runner.kv.planes.view(runner.kv.dtype).clone()
    engine.close()
    monkeypatch.undo()
    return logits, kv, rows


def _of_all_rows(self: BatchBuilder, *arguments: Any) -> StepBatch:
    *before, _sampled_starts, sampled, longest = arguments
    return _BATCH(self, *before, None, sampled, longest)


_BATCH = BatchBuilder._batch


@pytest.mark.parametrize("one_call", [True, False], ids=["one-call", "loop"])
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_rows_nobody_reads_change_nothing(
    config: dict[str, object], one_call: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, kv, rows = _run(config, one_call, True, monkeypatch)
    expected, expected_kv, all_rows = _run(config, one_call, False, monkeypatch)
    assert set(all_rows) == {None}
    assert 0 in rows, "no step computed only a piece of a prompt"
    assert any(rows), "no step sampled behind a prompt"
    assert None in rows, "no step only decoded"
    assert [each.shape for each in logits] == [each.shape for each in expected]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    assert torch.equal(kv, expected_kv)


PROMPT_LENGTHS = (3, 40, 17, 1)
SIZES = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 6}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint and two adapters, on a CPU without AMX, where bfloat16 is ours too."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
    monkeypatch.setattr(linear, "packs_for_amx", lambda dtype: False)
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, num_key_value_heads=2, vocab_size=199, initializer_range=0.2)
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "model")
    for index in range(2):
        save_adapter(model, tmp_path / f"adapter-{index}", seed=index, r=3 + index)
    return tmp_path


def _run_adapters(folder: Path, dtype: str, one_call: bool) -> tuple[list[list[int]], torch.Tensor]:
    """Tokens of prompts with either adapter or none, one longer than a step, and the pool afterwards."""
    settings = {"dtype": dtype, "device": "cpu", "device_memory": "256MiB", "max_num_batched_tokens": 24}
    with LLM(str(folder / "model"), **settings, max_model_len=96, enable_lora=True, max_loras=2) as llm:
        decoder, kv = llm.engine.model.decoder, llm.engine.serving.runner.kv
        assert decoder.layer_run is not None, "this model's layers are all the kernels', yet the slow loop runs"
        if not one_call:
            decoder.layer_run = None
        kv.planes.zero_()
        own = [LoRARequest(f"adapter-{index}", str(folder / f"adapter-{index}")) for index in range(2)]
        prompts = [{"prompt_token_ids": [(7 * n + 3 * i) % 190 for i in range(n)]} for n in PROMPT_LENGTHS]
        params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
        outputs = llm.generate(prompts, params, lora_request=[own[0], own[1], None, own[0]])
        return [list(output.outputs[0].token_ids) for output in outputs], kv.planes.view(kv.dtype).clone()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_call_corrects_as_the_loop_does(folder: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    plain = PackedLoraLinear.__call__

    def counted(self: PackedLoraLinear, x: torch.Tensor, out: torch.Tensor) -> None:
        calls.append(x.shape[0])
        plain(self, x, out)

    monkeypatch.setattr(PackedLoraLinear, "__call__", counted)
    one_call = _run_adapters(folder, dtype, one_call=True)
    assert not calls, "products of a step were called one by one"
    loop = _run_adapters(folder, dtype, one_call=False)
    assert calls
    assert one_call[0] == loop[0]
    assert torch.equal(one_call[1], loop[1])


def _answers(engine: Engine, lengths: tuple[int, ...]) -> dict[str, list[int]]:
    """The tokens of prompts that end after 3, 5, ... tokens, so that the number of rows changes in between."""
    tokens: dict[str, list[int]] = {}
    for index, length in enumerate(lengths):
        prompt = [(11 * index + 5 * i) % 190 for i in range(length)]
        params = SamplingParams(temperature=0.0, max_tokens=3 + 2 * index, ignore_eos=True)
        engine.add_request(str(index), prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
    return tokens


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each step for which arguments were made."""
    rows: list[int] = []
    make = CpuLayerRun._make_args

    def counted(self: CpuLayerRun, step: StepSpace, num_layers: int | None = None) -> LayersArgs:
        rows.append(step.batch.num_tokens)
        return make(self, step, num_layers)

    monkeypatch.setattr(CpuLayerRun, "_make_args", counted)
    return rows


@pytest.mark.parametrize("config", [GPT2, MODELS["gemma3"]], ids=["one place", "several places"])
def test_arguments_are_made_once_for_each_number_of_rows(config: dict[str, object], made: list[int]) -> None:
    engine = make_engine(config, "float32", one_call=True)
    start = made.copy()
    assert set(start) == {24}, "steps that the start measures"
    answers = _answers(engine, (6, 9, 4))
    assert made == [*start, 19, 3, 2, 1], "the prompts, then steps of fewer and fewer rows"
    engine.reconfigure(max_num_seqs=4)
    assert _answers(engine, (6, 9, 4)) == answers
    assert made == start + [19, 3, 2, 1] * 2, "a new pool has other addresses"
    engine.close()
    loop = make_engine(config, "float32", one_call=False)
    made.clear()
    assert _answers(loop, (6, 9, 4)) == answers
    assert made == []
    loop.close()


def test_times_are_taken_from_the_step_after_they_were_asked_for(made: list[int]) -> None:
    engine = make_engine(GPT2, "float32", one_call=True)
    made.clear()
    _answers(engine, (8,))
    run = engine.decoder.layer_run
    assert isinstance(run, CpuLayerRun)
    run.time_operations()
    _answers(engine, (8,))
    assert made == [8, 1, 8, 1]
    assert run.operation_seconds()["qkv"] > 0
    engine.close()

"""Kernels broken on purpose: found, named, and replaced. `make check-kernels` plants each fault by itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from fake_gpu import FakeGpu
from planted_faults import FAULTS, GPT2, LLAMA, Fault, FaultyRuntime

from kvplan_engine import LLM, EngineError, SamplingParams
from kvplan_engine.execution import starting
from kvplan_engine.kernel_checks.run import check_kernels
from kvplan_engine.kernel_checks.verdicts import Store
from kvplan_engine.models import loaded_model
from kvplan_engine.models.device_kernels import DeviceKernels, checked_kernels, cuda_kernels

# In one source there can be one of them at a time; the others are in models of their own.
OF_A_LLAMA = [
    fault
    for fault in FAULTS
    if fault.model == "llama"
    and fault.cache == "auto"
    and not (fault.formats or fault.has_adapters or fault.num_ranks > 1)
]
TOGETHER = list({fault.source: fault for fault in reversed(OF_A_LLAMA)}.values())
LIMITS = {"max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 32, "block_size": 16, "seed": 3}


def start(monkeypatch: pytest.MonkeyPatch, runtime: FaultyRuntime, config: dict, **settings: object) -> LLM:
    """An engine of random weights over ``runtime``, whose kernels are checked as at a first start."""
    gpu = FakeGpu()
    gpu.runtime = runtime
    monkeypatch.setattr(starting, "open_device", lambda *_: gpu)

    def kernels(name: str, device: object, dtype: torch.dtype) -> DeviceKernels:
        made = cuda_kernels(runtime, dtype)
        object.__setattr__(made, "check", partial(checked_kernels, runtime, dtype, store=Store(None)))
        return made

    monkeypatch.setattr(loaded_model, "select_kernels", kernels)
    return LLM(config, load_format="dummy", **LIMITS, **settings)


def tokens_of(llm: LLM) -> list[list[int]]:
    prompts = [[5, 300, 7, 9], list(range(3, 40)), [8]]
    outputs = llm.generate(
        [{"prompt_token_ids": each} for each in prompts], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    )
    return [output.outputs[0].token_ids for output in outputs]


def families(faults: Sequence[Fault]) -> set[str]:
    return {name for fault in faults for name in fault.families}


def test_eleven_faults_at_once_are_found_named_and_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With every kernel of a Llama broken that a twin can stand in for, tokens are the reference's."""
    assert len(TOGETHER) >= 10
    wanted = tokens_of(
        LLM(LLAMA, load_format="dummy", device="cpu", attention_backend="reference", dtype="bfloat16", **LIMITS)
    )
    runtime = FaultyRuntime(TOGETHER, tmp_path)
    with caplog.at_level(logging.WARNING, "kvplan_engine"):
        llm = start(monkeypatch, runtime, LLAMA, dtype="bfloat16")
    assert families(TOGETHER) <= runtime.properties.avoided
    for name in families(TOGETHER):
        assert any(record.getMessage().startswith(f"{name} (") for record in caplog.records), name
    runtime.sources.clear()
    assert tokens_of(llm) == wanted
    assert not runtime.sources & {fault.source for fault in TOGETHER}, "a broken kernel ran"
    llm.close()


def test_what_nothing_stands_in_for_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    line = "first_visible(item.length - 1, params);"
    fault = Fault("", "attention/decode/decode_simple.cu", line, f"{line[:-1]} + 1;", ("decode_simple",))
    with pytest.raises(EngineError, match=r"decode_simple .* nothing can stand in for it") as refused:
        start(monkeypatch, FaultyRuntime([fault], tmp_path), GPT2, dtype="float32")
    assert "reference" in (refused.value.hint or "")


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_each_fault_is_found_and_nothing_else_is_blamed(fault: Fault, tmp_path: Path) -> None:
    verdicts = check_kernels(FaultyRuntime([fault], tmp_path), fault.use(), Store(None))
    assert {each.family for each in verdicts.failed} == set(fault.families)

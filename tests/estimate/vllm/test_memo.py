"""One memo shared between predictions of any models: each gets its own numbers."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.estimate.vllm.memo import Memo
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.settings import ServingSettings

MODELS = ("llama-3.1-8b", "mistral-7b-v0.3", "llama-2-7b", "deepseek-v3")


def predicted(name: str, memo: Memo) -> VllmPrediction:
    """With a ModelSpec of its own, which dies unless the memo keeps it."""
    spec = replace(resolve_model(name))
    settings = ServingSettings(max_model_len=4096, tensor_parallel_size=8, num_speculative_tokens=1)
    return predict_vllm(spec, find_gpu("h200"), settings, "0.33", memo=memo)


def test_a_shared_memo_answers_as_a_fresh_one() -> None:
    shared: Memo = {}
    for name in MODELS * 4:
        assert predicted(name, shared) == predicted(name, {})


def test_a_model_lives_as_long_as_what_is_kept_of_it() -> None:
    """Facts are found by the model's address, which would be another model's once it is gone."""
    memo: Memo = {}
    spec = replace(resolve_model("llama-3.1-8b"))
    predict_vllm(spec, find_gpu("h200"), ServingSettings(max_model_len=4096), "0.33", memo=memo)
    alive, address = weakref.ref(spec), id(spec)
    del spec
    gc.collect()
    found = alive()
    assert found is not None
    assert id(found) == address
    assert memo[address].spec is found

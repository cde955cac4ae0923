"""Decoders that go through layers again: weights once, a cache for each pass, weights read in each pass."""

from __future__ import annotations

import pytest
from counted_configs import counted_config
from kept_elements import kept

from kvplan.catalog.reader import read_config
from kvplan.errors import UsageError
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.work import model_work
from kvplan.estimate.vllm.division import check_division


def test_loop_coder_goes_through_all_layers_again():
    spec = read_config(counted_config("loop coder"), model_id="loop")
    assert spec.repeated_elements == spec.num_parameters - 2 * 76800 * 5120 - 5120


def test_what_transformers_writes_of_hrm_text_is_read_alike():
    """It counts the passes, and names the layers of a stack beside them."""
    written = counted_config("hrm text", num_hidden_layers=128, num_layers_per_stack=16)
    spec = read_config(counted_config("hrm text"), model_id="hrm")
    assert read_config(written, model_id="hrm").layers == spec.layers


@pytest.mark.parametrize(("mode", "caches"), [("per_loop", 56), ("last_loop", 36)])
def test_dory_has_caches_by_its_mode(mode, caches):
    """20 of its 36 blocks of attention are gone through twice."""
    spec = read_config(counted_config("dory", recurrent_kv_cache_mode=mode), model_id="dory")
    layers = [each for each in kept(spec) if each[1]]
    assert len(layers) == caches
    assert layers.count(("softmax", 2 * 4 * 256, None)) == caches // 4
    assert layers.count(("softmax", 2 * 4 * 256, 1024)) == caches - caches // 4


@pytest.mark.parametrize("name", ["loop coder", "hrm text", "dory", "nanbeige"])
def test_weights_are_read_in_every_pass_and_held_once(name):
    """A step reads and multiplies as many weights as the passes have, beside the head."""
    spec = read_config(counted_config(name), model_id="looped")
    held = sum(tensor.num_elements for layer in spec.layers for tensor in layer.all_tensors)
    work = model_work(spec, 2 * spec.num_parameters, "bfloat16", ParallelLayout())
    read = held + spec.repeated_elements + sum(each.num_elements for each in spec.tensors if each.role != "embedding")
    assert work.active_parameters == read
    assert work.dense_bytes == pytest.approx(2 * read, rel=1e-9)
    assert spec.repeated_elements > 0.8 * held * (len(spec.layers) / sum(bool(x.all_tensors) for x in spec.layers) - 1)


def test_vllm_divides_no_looped_model_into_stages():
    spec = read_config(counted_config("hrm text"), model_id="hrm")
    check_division(spec, ParallelLayout(tensor_parallel_size=2))
    with pytest.raises(UsageError, match="goes through layers again"):
        check_division(spec, ParallelLayout(pipeline_parallel_size=2))


def test_vllm_divides_no_dory_over_ranks():
    """DoryForCausalLM: "Dory currently supports tensor_parallel_size=1 only"."""
    spec = read_config(counted_config("dory"), model_id="dory")
    with pytest.raises(UsageError, match="DoryForCausalLM takes no --tensor-parallel-size above 1"):
        check_division(spec, ParallelLayout(tensor_parallel_size=2))

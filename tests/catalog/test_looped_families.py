"""Decoders that go through layers again: weights once, a cache for each pass, weights read in each pass."""

from __future__ import annotations

from typing import Any

import pytest
from kept_elements import kept

from kvplan.catalog.reader import read_config
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.work import model_work
from kvplan.estimate.vllm.division import check_division

_LOOP_CODER: dict[str, Any] = {
    "architectures": ["IQuestLoopCoderForCausalLM"],
    "model_type": "iquestloopcoder",
    "head_dim": 128,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "loop_num": 2,
    "loop_window_size": 64,
    "max_position_embeddings": 131072,
    "num_attention_heads": 40,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 76800,
}
"""IQuestLab/IQuest-Coder-V1-40B-Loop-Instruct, as its conversions quote it."""
_HRM: dict[str, Any] = {
    "architectures": ["HrmTextForCausalLM"],
    "model_type": "hrm_text",
    "vocab_size": 151808,
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "head_dim": 128,
    "H_cycles": 2,
    "L_cycles": 3,
    "torch_dtype": "bfloat16",
}
_DORY: dict[str, Any] = {
    "architectures": ["DoryForCausalLM"],
    "model_type": "dory",
    "vocab_size": 131072,
    "hidden_size": 2560,
    "intermediate_size": 7168,
    "num_hidden_layers": 72,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 1024,
    "layer_types": (["sliding_attention", "mlp"] * 3 + ["full_attention", "mlp"]) * 9,
    "n_input_layers": 16,
    "n_output_layers": 16,
    "n_recurrent_loops": 2,
    "torch_dtype": "bfloat16",
}

_NANBEIGE: dict[str, Any] = {
    "architectures": ["NanbeigeForCausalLM"],
    "model_type": "nanbeige",
    "vocab_size": 166144,
    "hidden_size": 3072,
    "intermediate_size": 10752,
    "num_hidden_layers": 22,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "attention_bias": False,
    "loop_loss_weights": [],
    "num_loops": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""Nanbeige/Nanbeige4.2-3B, as others quote it."""


def test_nanbeige_keeps_all_tokens_of_each_pass():
    """3 B without embeddings, 4 B in all, as its makers state; 22 layers are gone through twice."""
    spec = read_config(_NANBEIGE, model_id="nanbeige")
    layer = 3072 * 128 * (48 + 8 + 8 + 48) + 3 * 3072 * 10752 + 2 * 3072
    assert spec.num_parameters == 22 * layer + 2 * 166144 * 3072 + 3072
    assert 22 * layer / 1e9 == pytest.approx(3.15, abs=0.05)
    assert kept(spec) == [("softmax", 2 * 8 * 128, None)] * 44


def test_loop_coder_keeps_all_tokens_once_and_a_window_of_each_further_pass():
    """Sizes of Llama with a gate of 40 x (128 + 1) in each of 80 layers (vllm: models/iquest_loopcoder.py)."""
    spec = read_config(_LOOP_CODER, model_id="loop")
    layer = 5120 * 128 * (40 + 8 + 8 + 40) + 3 * 5120 * 27648 + 2 * 5120 + 40 * 129
    assert spec.num_parameters == 80 * layer + 2 * 76800 * 5120 + 5120 == 39_794_696_320
    assert kept(spec) == [("softmax", 2 * 8 * 128, None)] * 80 + [("softmax", 2 * 8 * 128, 64)] * 80
    assert spec.repeated_elements == 80 * layer


def test_hrm_text_has_the_parameters_of_its_class_and_a_cache_of_each_pass():
    """transformers 5.24's class of its defaults, which are sapientinc/HRM-Text-1B's: 2 x (3 + 1) passes of 16 layers.

    What transformers writes back counts the passes, and names the layers of a stack beside them.
    """
    spec = read_config(_HRM, model_id="hrm")
    assert spec.num_parameters == 1_447_822_848
    assert kept(spec) == [("softmax", 2 * 12 * 128, None)] * 128
    written = {**_HRM, "num_hidden_layers": 128, "num_layers_per_stack": 16}
    assert read_config(written, model_id="hrm").layers == spec.layers


@pytest.mark.parametrize(("mode", "caches"), [("per_loop", 56), ("last_loop", 36)])
def test_dory_has_the_parameters_of_its_class_and_caches_by_its_mode(mode, caches):
    """transformers 5.24's class of its defaults; 20 of its 36 blocks of attention are gone through twice."""
    spec = read_config({**_DORY, "recurrent_kv_cache_mode": mode}, model_id="dory")
    assert spec.num_parameters == 3_975_229_440
    layers = [each for each in kept(spec) if each[1]]
    assert len(layers) == caches
    assert layers.count(("softmax", 2 * 4 * 256, None)) == caches // 4
    assert layers.count(("softmax", 2 * 4 * 256, 1024)) == caches - caches // 4


@pytest.mark.parametrize("config", [_LOOP_CODER, _HRM, _DORY, _NANBEIGE])
def test_weights_are_read_in_every_pass_and_held_once(config):
    """A step reads and multiplies as many weights as the passes have, beside the head."""
    spec = read_config(config, model_id="looped")
    held = sum(tensor.num_elements for layer in spec.layers for tensor in layer.all_tensors)
    work = model_work(spec, 2 * spec.num_parameters, "bfloat16", ParallelLayout())
    read = held + spec.repeated_elements + sum(each.num_elements for each in spec.tensors if each.role != "embedding")
    assert work.active_parameters == read
    assert work.dense_bytes == pytest.approx(2 * read, rel=1e-9)
    assert spec.repeated_elements > 0.8 * held * (len(spec.layers) / sum(bool(x.all_tensors) for x in spec.layers) - 1)


def test_vllm_divides_no_looped_model_into_stages():
    spec = read_config(_HRM, model_id="hrm")
    check_division(spec, ParallelLayout(tensor_parallel_size=2))
    with pytest.raises(UsageError, match="goes through layers again"):
        check_division(spec, ParallelLayout(pipeline_parallel_size=2))


def test_vllm_divides_no_dory_over_ranks():
    """DoryForCausalLM: "Dory currently supports tensor_parallel_size=1 only"."""
    spec = read_config(_DORY, model_id="dory")
    with pytest.raises(UsageError, match="DoryForCausalLM takes no --tensor-parallel-size above 1"):
        check_division(spec, ParallelLayout(tensor_parallel_size=2))


@pytest.mark.parametrize(
    ("config", "own"),
    [
        (_DORY, {"layer_types": None}),
        (_DORY, {"layer_types": ["full_attention"] * 72}),
        (_DORY, {"n_recurrent_loops": None}),
        (_DORY, {"n_input_layers": None}),
        (_DORY, {"n_recurrent_layers": 30}),
        (_DORY, {"recurrent_kv_cache_mode": "first_loop"}),
        (_HRM, {"attention_bias": True}),
        (_NANBEIGE, {"loop_share_kv": True}),
        (_NANBEIGE, {"loop_loss_weights": [0.5]}),
        (_NANBEIGE, {"emb_neighbor_num": 3}),
        (_LOOP_CODER, {"dual_chunk_attention_config": {"chunk_size": 8}}),
    ],
)
def test_what_is_not_known_of_looped_models_is_refused(config, own):
    (key,) = own
    with pytest.raises(KvplanError, match=key):
        read_config({**config, **own}, model_id="looped")

"""Architectures of vLLM 0.33 that came last: parameters and caches by hand, by transformers' class, or as stated."""

from __future__ import annotations

import pytest
from counted_configs import SMALL
from kept_elements import kept

from kvplan.catalog.reader import read_config
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.work import model_work
from kvplan.estimate.vllm.division import check_division

_SMALL = {key: value for key, value in SMALL.items() if key != "head_dim"} | {"torch_dtype": "bfloat16"}
_EMBEDDING, _NORM = 128 * 64, 64
_LLAMA_LAYER = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64 + 2 * _NORM


def test_telechat_2_has_biases_of_both_outputs():
    """As vllm/model_executor/models/telechat2.py: those of the other matrices are taken away again."""
    config = {**_SMALL, "architectures": ["TeleChat2ForCausalLM"]}
    renamed = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "intermediate_size": "ffn_hidden_size"}
    config |= {theirs: config.pop(ours) for ours, theirs in renamed.items()}
    spec = read_config(config, model_id="telechat")
    assert spec.num_parameters == 4 * (_LLAMA_LAYER + 2 * 64) + 2 * _EMBEDDING + _NORM
    assert kept(spec) == [("softmax", 2 * 2 * 16, None)] * 4
    with pytest.raises(KvplanError, match="embed_layernorm"):
        read_config({**config, "embed_layernorm": True}, model_id="telechat")


@pytest.mark.parametrize(("groups", "elements"), [({"num_attention_groups": 2}, 64), ({}, 32)])
def test_step_1_keeps_groups_of_heads_without_positions(groups, elements):
    """One group where the config names none (vllm/model_executor/models/step1.py)."""
    config = {**_SMALL, **groups, "architectures": ["Step1ForCausalLM"], "tie_word_embeddings": True}
    del config["num_key_value_heads"]
    spec = read_config(config, model_id="step")
    assert kept(spec) == [("softmax", elements, None)] * 4
    assert spec.num_parameters == 4 * (_LLAMA_LAYER - 2 * (64 - elements) // 2 * 64) + _EMBEDDING + _NORM
    assert spec.rope is None


_BEAM = {
    "architectures": ["BeamForCausalLM"],
    "model_type": "beam",
    "vocab_size": 151936,
    "hidden_size": 5120,
    "intermediate_size": 20480,
    "num_hidden_layers": 52,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "sliding_window": 512,
    "layer_types": [
        "full_attention" if (index + 1) % 6 == 0 or index == 51 else "sliding_attention" for index in range(52)
    ],
    "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 49,
    "moe_intermediate_size": 2560,
    "num_experts_per_tok": 8,
    "num_experts": 256,
}
_FLINT = {
    "architectures": ["FlintForCausalLM"],
    "model_type": "flint",
    "vocab_size": 150144,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 49,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "sliding_window": 513,
    "layer_types": [
        "full_attention" if index < 2 or index % 4 == 1 or index == 48 else "sliding_attention" for index in range(49)
    ],
    "moe_intermediate_size": 512,
    "num_experts_per_tok": 6,
    "num_experts": 256,
    "mlp_only_layers": [0, 1],
}
_KOLIBRI = {
    "architectures": ["Kolibri1ForCausalLM"],
    "model_type": "kolibri1",
    "vocab_size": 128000,
    "hidden_size": 2560,
    "num_hidden_layers": 50,
    "num_attention_heads": 48,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 512,
    "num_experts_per_tok": 6,
    "num_experts": 384,
}


@pytest.mark.parametrize(
    ("config", "parameters", "active_billions", "full", "window", "elements"),
    [
        (_BEAM, 501_267_612_352, 23.4, 9, 512, 2 * 8 * 128),
        (_FLINT, 39_785_287_456, 2.8, 14, 513, 2 * 4 * 128),
        (_KOLIBRI, 78_103_074_560, 3.8, 10, 513, 2 * 4 * 128),
    ],
)
def test_mixtures_have_the_parameters_of_their_classes(config, parameters, active_billions, full, window, elements):
    """transformers 5.24's classes of the defaults that name a published model, with their routers' corrections."""
    spec = read_config(config, model_id="mixture")
    assert spec.num_parameters == parameters
    assert spec.num_active_parameters / 1e9 == pytest.approx(active_billions, abs=0.05)
    layers = kept(spec)
    assert layers.count(("softmax", elements, None)) == full
    assert layers.count(("softmax", elements, window)) == len(layers) - full


@pytest.mark.parametrize(
    ("config", "key"),
    [(_BEAM, "layer_types"), (_BEAM, "mlp_layer_types"), (_FLINT, "layer_types"), (_FLINT, "mlp_only_layers")],
)
def test_lists_that_two_classes_fill_differently_are_needed(config, key):
    """vLLM's BeamConfig and FlintConfig take other defaults than transformers' classes of the same names."""
    silent = {name: value for name, value in config.items() if name != key}
    with pytest.raises(KvplanError, match=key):
        read_config(silent, model_id="silent")


_K2_HORIZON = {
    "architectures": ["K2HorizonForCausalLM"],
    "model_type": "k2_horizon",
    "vocab_size": 250624,
    "hidden_size": 2560,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 524288,
    "mlp_only_layers": [0, 1, 2],
    "num_experts": 100,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "num_shared_experts": 1,
    "mova_num_experts": 64,
    "mova_num_experts_per_tok": 4,
    "attention_bias": False,
    "attention_gate_func": "softplus",
    "moe_gate_bias": True,
    "query_key_norm": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def test_k2_horizon_has_the_parameters_of_its_name():
    """IFM/K2-Horizon-MoVA-36B-A4B, which counts no embedding: of 64 matrices of values a token uses 4.

    A conversion with 4-bit groups of 64 beside a bfloat16 embedding and head loads 21.8 GB and reads 3.78 GB a token.
    """
    spec = read_config(_K2_HORIZON, model_id="k2")
    attended = 2560 * 128 * (32 + 8 + 32 + 32) + 2 * 2560
    values = 64 * (1024 * 2560 + 2560 + 1)
    experts = 101 * 3 * 768 * 2560 + 100 * (2560 + 1)
    dense = 1024 * 2560 + 3 * 6144 * 2560
    outside = 2 * 250624 * 2560 + 2560
    assert spec.num_parameters == 48 * attended + 45 * (values + experts) + 3 * dense + outside
    four_bits, head = (4 + 16 / 64) / 8, 2 * 250624 * 2560
    assert (spec.num_parameters - outside) / 1e9 == pytest.approx(36, abs=0.5)
    assert ((spec.num_parameters - outside) * four_bits + 2 * head) / 1e9 == pytest.approx(21.8, abs=0.1)
    assert ((spec.num_active_parameters - outside) * four_bits + head) / 1e9 == pytest.approx(3.78, abs=0.05)
    assert kept(spec) == [("softmax", 2 * 8 * 128, None)] * 48
    assert any("copies the matrices of all 64 value experts" in sentence for sentence in spec.assumptions)


@pytest.mark.parametrize("key", ["attention_gate_func", "moe_gate_bias", "query_key_norm", "mova_num_experts"])
def test_k2_horizon_needs_what_its_class_alone_would_fill_in(key):
    silent = {name: value for name, value in _K2_HORIZON.items() if name != key}
    with pytest.raises(KvplanError, match=key):
        read_config(silent, model_id="k2")


def test_domyn_edge_has_heads_of_each_layers_own_size():
    """A window of 16 tokens to the left is one of 17; keys' norms have a weight, queries' have none."""
    sizes = [32, 16, 16, 32]
    config = {
        **_SMALL,
        "architectures": ["DomynEdgeForCausalLM"],
        "position_layers": ["nope", "rope", "rope", "nope"],
        "window_sizes": [[-1, 0], [16, 0], [16, 0], [-1, 0]],
        "head_sizes": sizes,
    }
    spec = read_config(config, model_id="domyn")
    assert kept(spec) == [
        ("softmax", 128, None),
        ("softmax", 64, 17),
        ("softmax", 64, 17),
        ("softmax", 128, None),
    ]
    layers = sum(2 * 64 * (4 + 2) * size + size + 3 * 96 * 64 + 4 * _NORM for size in sizes)
    assert spec.num_parameters == layers + 2 * _EMBEDDING + _NORM
    own = {"0": {"head_dim": 32}, "3": {"head_dim": 32}}
    written = {**config, "head_sizes": None, "head_dim": 16, "per_layer_config": own}
    assert read_config(written, model_id="domyn").layers == spec.layers
    for key in ("position_layers", "window_sizes", "head_sizes"):
        with pytest.raises(KvplanError, match=key):
            read_config({**config, key: None}, model_id="domyn")


_PANGU = {
    **_SMALL,
    "architectures": ["PanguProMoEV2ForCausalLM"],
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "qk_nope_dim": 16,
    "qk_rope_dim": 8,
    "v_channels": 12,
    "param_sink_number": 8,
    "interleaved_sliding_window": [16, 0],
}


def test_pangu_pro_keeps_all_tokens_beside_keys_of_its_own():
    """SinkFullAttentionSpec of vLLM's class has no window; keys are 24 wide, values 12."""
    spec = read_config(_PANGU, model_id="pangu")
    assert kept(spec) == [("softmax", 2 * (24 + 12), None)] * 4
    attended = 64 * (4 * 24 + 2 * 24 + 2 * 12 + 4 * 12) + 24 + 8 * 2 * 24 + 2 * _NORM
    routed = 5 * 3 * 32 * 64 + 4 * 64
    assert spec.num_parameters == 4 * attended + 3 * 96 * 64 + 3 * routed + 2 * _EMBEDDING + _NORM
    with_values = read_config({**_PANGU, "param_sink_with_value": True}, model_id="pangu")
    assert with_values.num_parameters - spec.num_parameters == 4 * 8 * 2 * 12


def test_pangu_pro_without_such_keys_has_its_windows_in_turn():
    spec = read_config({**_PANGU, "param_sink_number": None}, model_id="pangu")
    assert kept(spec) == [("softmax", 64, 16), ("softmax", 64, None)] * 2
    with pytest.raises(KvplanError, match="kv_lora_rank"):
        read_config({**_PANGU, "kv_lora_rank": 16}, model_id="pangu")


_PUZZLE = {
    **{key: value for key, value in _SMALL.items() if key != "num_hidden_layers"},
    "architectures": ["NemotronHPuzzleForCausalLM"],
    "head_dim": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "n_groups": 2,
    "n_routed_experts": 8,
    "moe_latent_size": 32,
    "moe_shared_expert_intermediate_size": 48,
    "block_configs": [
        {"block_type": "mamba"},
        {"block_type": "moe", "moe_intermediate_size": 24, "num_experts_per_tok": 2},
        {"block_type": "attention"},
        {"block_type": "moe", "moe_intermediate_size": 40, "num_experts_per_tok": 3},
    ],
    "mtp_block_configs": [
        {"block_type": "attention"},
        {"block_type": "moe", "moe_intermediate_size": 56, "num_experts_per_tok": 4},
    ],
    "num_nextn_predict_layers": 1,
}


def _puzzle_mixture(size: int) -> int:
    """Two matrices of each expert on a latent of 32, both projections, a router with its correction, a shared one."""
    return 8 * 2 * size * 32 + 2 * 32 * 64 + 8 * 64 + 8 + 2 * 48 * 64


def test_blocks_of_nemotron_puzzle_have_sizes_of_their_own():
    spec = read_config(_PUZZLE, model_id="puzzle")
    mamba = 64 * (2 * 64 + 2 * 2 * 8 + 4) + 5 * (64 + 2 * 2 * 8) + 3 * 4 + 64 + 64 * 64
    attending = 64 * 16 * (4 + 2 + 2 + 4)
    assert spec.num_parameters == (
        mamba + _puzzle_mixture(24) + attending + _puzzle_mixture(40) + 5 * _NORM + 2 * _EMBEDDING
    )
    (drafter,) = spec.extras
    assert drafter.num_parameters == attending + _puzzle_mixture(56) + 5 * _NORM + 2 * 64 * 64
    assert [layer.feed_forward.experts_per_token for layer in spec.layers if layer.feed_forward] == [2, 3]
    with pytest.raises(KvplanError, match=r"block_configs\[0\].block_type"):
        read_config({**_PUZZLE, "block_configs": [{"attention": {"no_op": True}}]}, model_id="puzzle")


def test_what_a_token_uses_of_unlike_mixtures_is_their_mean():
    """2 of 8 experts of 24, and 3 of 8 of 40: 8 * (2 * 24 + 3 * 40) / (8 * (24 + 40)) = 2.6 of them."""
    spec = read_config(_PUZZLE, model_id="puzzle")
    work = model_work(spec, 2 * spec.num_parameters, "bfloat16", ParallelLayout())
    assert work.experts_per_token == 3
    assert work.active_expert_parameters == 2 * 32 * (2 * 24 + 3 * 40)


_ALICE = {
    **_SMALL,
    "architectures": ["AliceAIForCausalLM"],
    "head_dim": 24,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 40,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "block_attn_res_block_size": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "mtp_num_hidden_layers": 1,
}


def test_alice_has_kimi_states_gated_attention_and_weighed_residuals():
    """As vllm/model_executor/models/alice_ai.py; a norm and a row of scores before each block but the first."""
    spec = read_config(_ALICE, model_id="alice")
    state = 4 * 64 * 64 + 3 * 64 * 4 + 2 * (64 * 16 + 16 * 64) + 64 + 4 + 4 * 64 + 16
    attending = 64 * 24 * (2 * 4 + 2 + 2 + 4) + 2 * 24
    part = 4 * 3 * 32 * 64 + 4 * 64 + 4 + 3 * 40 * 64 + 64
    residuals = (4 + 3 + 1) * 2 * 64
    assert spec.num_parameters == 3 * state + attending + 4 * (part + 2 * _NORM) + residuals + 2 * _EMBEDDING + _NORM
    assert kept(spec) == [("state", 4 * 16 * 16, None)] * 3 + [("softmax", 2 * 2 * 24, None)]
    assert spec.extras == ()
    with pytest.raises(UsageError, match="AliceAIForCausalLM takes no --pipeline-parallel-size above 1"):
        check_division(spec, ParallelLayout(pipeline_parallel_size=2))


@pytest.mark.parametrize(
    "own",
    [
        {"router_bias_correction": False},
        {"kda_allow_negative_eigenvalues": True},
        {"block_attn_res_block_size": None},
        {"linear_num_value_heads": 8},
    ],
)
def test_what_vllm_refuses_of_alice_is_refused(own):
    (key,) = own
    with pytest.raises(KvplanError, match=key):
        read_config({**_ALICE, **own}, model_id="alice")

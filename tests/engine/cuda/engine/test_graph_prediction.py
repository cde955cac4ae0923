"""The planner counts the launches and sizes of captured decode steps as the engine captures them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_gpu import FakeGpu, take_gpu
from tiny_configs import gpt2_config

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.estimate.deployments import place
from kvplan.estimate.kvplan.graphs import (
    BYTES_PER_LAUNCH,
    graph_memory,
    graph_sizes,
    launches_each_expert,
    prompt_sizes,
    step_launches,
)
from kvplan.estimate.kvplan.memory import predict
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.settings import ServingSettings
from kvplan_engine import Engine, EngineConfig
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.device.allocation import CUDA_OVERHEAD_BYTES
from kvplan_engine.execution.graphs import ladder_of, prompt_ladder_of
from kvplan_engine.kernels.cuda.mixtures import slice_outputs
from kvplan_engine.memory.plan import kv_layout, plan_memory

GIB, MIB = 1024**3, 1024**2
TOKENS = 8
COMMON = {
    "hidden_size": 256,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 384,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
CONFIGS = {
    "llama": COMMON | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "qwen2": COMMON | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": COMMON | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 64},
    "gpt2": gpt2_config(n_embd=128, n_head=2, n_layer=3, n_positions=64, vocab_size=384),
}


_EXPERTS = {"num_local_experts": 6, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 24}
_LATENT = {"num_key_value_heads": 4, "q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "v_head_dim": 16}
_DEEPSEEK = {"n_routed_experts": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
OTHERS = {
    "qwen3_next": COMMON
    | _EXPERTS
    | _DELTA
    | {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "linear_value_head_dim": 12}
    | {"head_dim": 64, "shared_expert_intermediate_size": 40, "full_attention_interval": 3},
    "deepseek_v3": COMMON
    | _EXPERTS
    | _LATENT
    | _DEEPSEEK
    | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "qk_rope_head_dim": 16},
    "falcon_mamba": COMMON
    | {"architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba", "state_size": 12, "expand": 2},
    "lfm2": COMMON
    | {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "layer_types": ["conv", "full_attention", "conv"]},
}
"""Mixtures of experts, latent attention, layers with a state."""


@pytest.mark.parametrize(
    ("name", "adapters"),
    [*((name, False) for name in ("llama", "qwen3", "gpt2", *OTHERS)), ("qwen2", True), ("gpt2", True)],
)
def test_the_launches_of_a_captured_step_are_those_predicted(
    name: str, adapters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps((CONFIGS | OTHERS)[name]), encoding="utf-8")
    take_gpu(monkeypatch, FakeGpu())
    limits = {"max_num_batched_tokens": TOKENS, "max_num_seqs": 5, "max_model_len": 48}
    engine = Engine(EngineConfig(model=str(path), load_format="dummy", dtype="float32", enable_lora=adapters, **limits))
    graphs = engine.serving.runner.graphs
    assert graphs is not None
    spec = resolve_model(str(path))
    launches = {(size.num_tokens, size.has_prompts): len(graph.calls) for size, graph in graphs._graphs.items()}
    expected = {(size, False) for size in graph_sizes(5)} | {(size, True) for size in prompt_sizes(TOKENS)}
    assert launches == {
        (size, has_prompts): step_launches(spec, size, has_adapters=adapters, has_prompts=has_prompts)
        for size, has_prompts in expected
    }


@pytest.mark.parametrize("max_num_seqs", [1, 3, 8, 15, 16, 17, 40, 256, 500, 512, 513, 4096])
def test_the_sizes_are_the_ladder(max_num_seqs: int) -> None:
    assert graph_sizes(max_num_seqs) == ladder_of(max_num_seqs)


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 32, 100, 256, 300, 511, 512, 513, 8192])
def test_the_sizes_of_steps_with_prompts_are_the_other_ladder(num_tokens: int) -> None:
    assert prompt_sizes(num_tokens) == prompt_ladder_of(num_tokens)


@pytest.mark.parametrize(
    ("name", "quantization", "each_expert"),
    [
        ("mixtral-8x7b", "none", False),
        ("mixtral-8x7b", "int4", True),
        ("gpt-oss-20b", "auto", True),
        ("gpt-oss-20b", "none", False),
        ("llama-3.1-8b", "int4", False),
    ],
)
def test_experts_in_few_bits_are_launched_one_by_one(name: str, quantization: str, each_expert: bool) -> None:
    spec = resolve_model(name)
    assert launches_each_expert(spec, "bfloat16", quantization) == each_expert
    settings, device = ServingSettings(quantization=quantization), EngineDevice(140 * GIB, "cuda", (9, 0))
    assert (predict(spec, settings, device).graphs is None) == each_expert


@pytest.mark.parametrize(("size", "quantization"), [(96, "int8"), (22, "none")])
def test_no_step_is_captured_where_experts_are_launched_one_by_one(
    size: int, quantization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In few bits, or of a size that the kernels do not take."""
    path = tmp_path / "config.json"
    values = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_hidden_layers": 1}
    values |= {"intermediate_size": size, "moe_intermediate_size": size}
    path.write_text(json.dumps(COMMON | _EXPERTS | values), encoding="utf-8")
    take_gpu(monkeypatch, FakeGpu())
    limits = {"max_num_batched_tokens": 4, "max_num_seqs": 1, "max_model_len": 16}
    own = {"load_format": "dummy", "dtype": "float32", "quantization": quantization}
    engine = Engine(EngineConfig(model=str(path), **own, **limits))
    assert engine.serving.runner.graph_sizes == ()
    assert launches_each_expert(resolve_model(str(path)), "float32", quantization)


def test_a_large_mixture_adds_its_outputs_in_slices() -> None:
    """512 rows of eight experts and the shared one: 3,584 of DeepSeek V3's 7,168 outputs fit the sums' memory."""
    spec = resolve_model("deepseek-v3")
    assert slice_outputs(512 * (8 + 1), spec.hidden_size) == 3584
    assert step_launches(spec, 512) - step_launches(spec, 8) == 58 * 3


@pytest.mark.parametrize(("capability", "workspace_mib"), [((8, 9), 8.125), ((9, 0), 32), ((12, 0), 32), (None, 32)])
def test_the_terms(capability: tuple[int, int] | None, workspace_mib: float) -> None:
    found = graph_memory(resolve_model("llama-3.1-8b"), 256, 2048, capability)
    assert (found.num_sizes, found.num_launches) == (20, 20 * (9 * 32 + 6))
    assert (found.num_prompt_sizes, found.num_prompt_launches) == (13, 13 * (10 * 32 + 6))
    assert found.num_bytes == (20 * 294 + 13 * 326) * BYTES_PER_LAUNCH + workspace_mib * MIB


def test_the_engine_given_these_bytes_has_the_predicted_blocks() -> None:
    device = EngineDevice(80 * GIB, kind="cuda", compute_capability=(9, 0))
    settings = ServingSettings(max_num_seqs=64, max_model_len=8192)
    predicted = predict(resolve_model("llama-3.1-8b"), settings, device)
    config = EngineConfig(model="llama-3.1-8b", max_num_seqs=64, max_model_len=8192)
    memory = plan_memory(
        config,
        kv_layout(config, load_model_config("llama-3.1-8b"), "bfloat16", 8192),
        8192,
        device_total_bytes=80 * GIB,
        weight_bytes=predicted.weight_bytes,
        workspace_bytes=predicted.activation_bytes,
        overhead_bytes=CUDA_OVERHEAD_BYTES,
        graph_bytes=predicted.graph_bytes,
    )
    assert predicted.graph_bytes > 0
    assert (memory.kv_pool_bytes, memory.num_blocks) == (predicted.kv_pool_bytes, predicted.num_blocks)


def test_a_cpu_has_no_graphs_and_neither_has_a_gpu_that_launches_everything() -> None:
    assert predict(resolve_model("gpt2"), ServingSettings(), EngineDevice(GIB)).graph_bytes == 0
    gpu = EngineDevice(8 * GIB, kind="cuda", compute_capability=(9, 0))
    assert predict(resolve_model("gpt2"), ServingSettings(), gpu).graph_bytes > 0
    assert predict(resolve_model("gpt2"), ServingSettings(enforce_eager=True), gpu).graph_bytes == 0


def test_an_estimate_says_the_figure_and_that_it_is_not_measured() -> None:
    settings = ServingSettings(max_model_len=8192)
    placement = place(resolve_model("llama-3.1-8b"), find_gpu("h100"), EngineChoice("kvplan"), settings)
    launches = 20 * 294 + 13 * 326
    assert placement.deployment.overhead_bytes == CUDA_OVERHEAD_BYTES + launches * BYTES_PER_LAUNCH + 32 * MIB
    assert placement.notes == (
        "CUDA graphs of steps take about 259 MiB of the overhead. Not measured: (5,880 launches of 20 batch sizes + "
        "4,238 of 13 sizes of steps with prompts) x 23 KiB (from vLLM's logs) + 32 MiB for cuBLAS.",
        "640 MiB of the overhead is reserved for the driver and libraries. Not measured: the engine raises it at "
        "start-up where it finds more.",
    )

"""The planner counts the launches and sizes of captured decode steps as the engine captures them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_gpu import FakeGpu, take_gpu

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.estimate.deployments import place
from kvplan.estimate.kvplan.graphs import BYTES_PER_LAUNCH, graph_memory, num_graph_sizes, step_launches
from kvplan.estimate.kvplan.memory import predict
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.settings import ServingSettings
from kvplan_engine import Engine, EngineConfig
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.device.overhead import CUDA_OVERHEAD_BYTES
from kvplan_engine.execution.graphs import ladder_of
from kvplan_engine.memory.plan import kv_layout, plan_memory

GIB, MIB = 1024**3, 1024**2
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
    "mistral": COMMON | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 12},
    "qwen2": COMMON | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": COMMON | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 64},
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": 128,
        "n_head": 2,
        "n_layer": 3,
        "n_positions": 64,
        "vocab_size": 384,
    },
}


@pytest.mark.parametrize(("name", "adapters"), [*((name, False) for name in CONFIGS), ("qwen2", True), ("gpt2", True)])
def test_the_launches_of_a_captured_step_are_those_predicted(
    name: str, adapters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    take_gpu(monkeypatch, FakeGpu())
    limits = {"max_num_batched_tokens": 32, "max_num_seqs": 5, "max_model_len": 64}
    engine = Engine(EngineConfig(model=str(path), load_format="dummy", dtype="float32", enable_lora=adapters, **limits))
    graphs = engine._runner.graphs
    assert graphs is not None
    assert len(graphs._graphs) == num_graph_sizes(5)
    assert {len(graph.calls) for graph in graphs._graphs.values()} == {
        step_launches(resolve_model(str(path)), has_adapters=adapters)
    }


@pytest.mark.parametrize("max_num_seqs", [1, 3, 8, 15, 16, 17, 40, 256, 500, 512, 513, 4096])
def test_the_sizes_are_the_ladder(max_num_seqs: int) -> None:
    assert num_graph_sizes(max_num_seqs) == len(ladder_of(max_num_seqs))


@pytest.mark.parametrize(("capability", "workspace_mib"), [((8, 9), 8.125), ((9, 0), 32), ((12, 0), 32), (None, 32)])
def test_the_terms(capability: tuple[int, int] | None, workspace_mib: float) -> None:
    found = graph_memory(resolve_model("llama-3.1-8b"), 256, capability)
    assert (found.num_sizes, found.num_launches) == (20, 9 * 32 + 6)
    assert found.num_bytes == 20 * 294 * BYTES_PER_LAUNCH + workspace_mib * MIB


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


def test_a_cpu_has_no_graphs() -> None:
    assert predict(resolve_model("gpt2"), ServingSettings(), EngineDevice(GIB)).graph_bytes == 0


def test_an_estimate_says_the_figure_and_that_it_is_not_measured() -> None:
    settings = ServingSettings(max_model_len=8192)
    placement = place(resolve_model("llama-3.1-8b"), find_gpu("h100"), EngineChoice("kvplan"), settings)
    assert placement.deployment.overhead_bytes == CUDA_OVERHEAD_BYTES + 20 * 294 * BYTES_PER_LAUNCH + 32 * MIB
    assert placement.notes == (
        "CUDA graphs of decode steps take about 164 MiB of the overhead. Not measured: 20 batch sizes x 294 launches x "
        "23 KiB (from vLLM's logs) + 32 MiB for cuBLAS.",
        "640 MiB of the overhead is reserved for the driver and libraries. Not measured: the engine raises it at "
        "start-up where it finds more.",
    )

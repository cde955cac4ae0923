"""GPUs that are only counted as a deployment divides them: the engine's blocks are those that were predicted.

Sizes alone: nothing is allocated, and no step is run. The engine reads every config and divides what is kept on its
own (``description/division.py``); the planner does so from its own description (``estimate/kvplan/ranks.py``).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from kvplan.catalog.devices.gpus import GpuCount, find_gpu
from kvplan.catalog.models import find_profile, profile_names, resolve_model
from kvplan.catalog.speculation.reading import with_speculation
from kvplan.errors import KvplanError
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.estimate.vllm.memo import Memo
from kvplan.settings import ServingSettings
from kvplan.sweeps.forecast.deployed import DeployedPool, predict_deployed
from kvplan_engine import ContextTooLong, Engine, EngineConfig, OutOfDeviceMemory
from kvplan_engine.checkpoints.loaders import read_config
from kvplan_engine.description.division import counted_part
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import SettingsError
from kvplan_engine.memory.plan import Needs, kv_layout, plan_ranks
from kvplan_engine.rank_account import RankAccount

GIB = 1024**3
SIZES = [(gpu, ranks) for gpu in ("h200", "b200") for ranks in (1, 2, 4, 8)]


def _predict(model: Any, gpu: str, memo: Memo | None = None, count: int = 1, **settings: Any) -> DeployedPool:
    counted = GpuCount(count, find_gpu(gpu))
    device = EngineDevice(counted.gpu.memory_bytes, kind="cuda", is_counted=True)
    spec = resolve_model(model) if isinstance(model, str) else model
    return predict_deployed(spec, counted, ServingSettings(**settings), device, {} if memo is None else memo)


def _counted(whole: ModelDescription, pool: DeployedPool) -> dict[str, Any]:
    """The engine's own arithmetic with what the ranks of ``pool`` take."""
    serving = pool.vllm.settings.serving
    config = EngineConfig(
        model={},
        load_format="none",
        gpu_memory_utilization=serving.gpu_memory_utilization,
        max_num_batched_tokens=serving.max_num_batched_tokens,
        block_size=serving.block_size,
        kv_cache_dtype=pool.engine_kv_cache_dtype,
    )
    parts, first = [], 0
    for rank in pool.ranks:
        layers = range(first, first + rank.num_layers)
        parts.append(counted_part(whole, layers, serving.tensor_parallel_size))
        first += rank.num_layers
    layouts = [kv_layout(config, part, pool.dtype, serving.max_model_len) for part in parts]
    needs = [
        Needs(rank.weight_bytes, rank.activation_bytes, rank.overhead_bytes, layout.block_bytes)
        for rank, layout in zip(pool.ranks, layouts, strict=True)
    ]
    try:
        total = serving.device_memory_bytes
        memory = plan_ranks(config, layouts[0], serving.max_model_len, needs, device_total_bytes=total)
    except (OutOfDeviceMemory, ContextTooLong) as refusal:
        return {"outcome": refusal.status}
    return {
        "outcome": "ok",
        "num_blocks": memory.num_blocks,
        "block_bytes": memory.block_bytes,
        "kv_pool_bytes": memory.kv_pool_bytes,
        "kv_cache_tokens": layouts[0].pool_tokens(memory.num_blocks, serving.max_model_len),
    }


def _expected(pool: DeployedPool) -> dict[str, Any]:
    found = pool.engine
    if found.outcome != "ok":
        return {"outcome": found.outcome}
    names = ("outcome", "num_blocks", "block_bytes", "kv_pool_bytes", "kv_cache_tokens")
    return {name: getattr(found, name) for name in names}


@pytest.mark.slow
def test_every_profile_has_the_pool_that_was_predicted() -> None:
    """On 1, 2, 4 and 8 H200 or B200, wherever vLLM divides the model so; models in latents, states and few bits too."""
    counted, latent, states, few_bits = 0, set(), set(), set()
    for name in profile_names():
        spec, memo = resolve_model(name), dict[Any, Any]()
        profile = find_profile(name)
        assert profile is not None
        whole = read_config(profile["config"])
        for gpu, ranks in SIZES:
            try:
                pool = _predict(spec, gpu, memo, ranks)
            except KvplanError:  # heads that do not divide, or a model without a longest context
                continue
            expected = _expected(pool)
            assert _counted(whole, pool) == expected, (name, gpu, ranks)
            if expected["outcome"] != "ok":
                continue
            counted += 1
            latent |= {name} if spec.is_latent and ranks == 8 else set()
            states |= {name} if spec.has_state and ranks == 8 else set()
            few_bits |= {name} if spec.quantization is not None and ranks == 8 else set()
            if pool.engine.layout.is_uniform and not spec.has_indexer and pool.vllm.num_groups == 1:
                # vLLM multiplies a quotient by the length and rounds down, which may lose one.
                assert 0 <= pool.engine.kv_cache_tokens - pool.vllm.kv_cache_tokens <= 1, (name, gpu, ranks)
    assert counted > 1200
    assert min(len(latent), len(states), len(few_bits)) > 10


@pytest.mark.parametrize(
    ("model", "gpu", "settings"),
    [
        ("deepseek-v3", "h200", {"tensor_parallel_size": 8}),
        ("deepseek-v3", "h200", {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}),
        ("deepseek-v3", "h200", {"tensor_parallel_size": 8, "enable_expert_parallel": True, "kv_cache_dtype": "fp8"}),
        ("deepseek-v3", "h200", {"tensor_parallel_size": 8, "num_speculative_tokens": 1}),
        ("glm-4.5", "h200", {"tensor_parallel_size": 8, "num_speculative_tokens": 3}),
        ("mimo-7b-base", "h100-sxm", {"num_speculative_tokens": 1}),
        ("gemma-3-27b", "h100-sxm", {"pipeline_parallel_size": 4}),
        ("nemotron-3-nano-30b", "h100-sxm", {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}),
        ("llama-3.1-8b", "l4", {"quantization": "awq", "max_loras": 4, "max_lora_rank": 16}),
    ],
)
def test_an_engine_that_counts_starts_with_that_pool(model: str, gpu: str, settings: dict[str, Any]) -> None:
    asked = with_speculation(resolve_model(model), ServingSettings(**settings))
    pool = _predict(asked.spec, gpu, max_model_len=8192, **settings)
    drafts = settings.get("num_speculative_tokens")
    drafting: Any = {"method": "mtp", "num_speculative_tokens": drafts} if drafts else None
    serving = pool.vllm.settings.serving
    engine = Engine(
        EngineConfig(
            model=model,
            load_format="none",
            device="cuda",
            device_memory=serving.device_memory_bytes,
            gpu_memory_utilization=serving.gpu_memory_utilization,
            max_model_len=8192,
            max_num_batched_tokens=serving.max_num_batched_tokens,
            block_size=serving.block_size,
            dtype=pool.dtype,
            kv_cache_dtype=pool.engine_kv_cache_dtype,
            tensor_parallel_size=serving.tensor_parallel_size,
            pipeline_parallel_size=serving.pipeline_parallel_size,
            enable_expert_parallel=serving.enable_expert_parallel,
            speculative_config=drafting,
            rank_accounts=tuple(RankAccount(**asdict(rank)) for rank in pool.ranks),
        )
    )
    memory, expected = engine.memory, pool.engine
    assert (memory.num_blocks, memory.block_bytes) == (expected.num_blocks, expected.block_bytes)
    assert (memory.weight_bytes, engine.model.adapter_bytes) == (expected.weight_bytes, expected.adapter_bytes)
    assert (memory.activation_bytes, memory.overhead_bytes) == (expected.activation_bytes, expected.overhead_bytes)


def test_deepseek_on_eight_gpus_holds_what_an_estimate_says() -> None:
    """Latents are whole on every rank: 629,312 tokens, not the 5.8 million of one device as large as eight H200."""
    pool = _predict("deepseek-v3", "h200", count=8)
    assert pool.engine.kv_cache_tokens == pool.vllm.kv_cache_tokens == 629_312


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"load_format": "dummy", "rank_accounts": [asdict(RankAccount(32, 1, 1, 1))]}, "is for load_format 'none'"),
        ({"rank_accounts": "none"}, "must be a list"),
        ({"rank_accounts": [{"layers": 3}]}, "must be a list"),
        ({"rank_accounts": [asdict(RankAccount(16, 1, 1, 1))] * 2}, "has 2 stages"),
    ],
)
def test_accounts_that_are_none_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        EngineConfig(**{"model": "llama-3.1-8b", "load_format": "none", **settings})


def test_accounts_of_another_model_are_refused() -> None:
    account = RankAccount(31, GIB, GIB, GIB)
    config = EngineConfig(
        model="llama-3.1-8b", load_format="none", device="cpu", device_memory=80 * GIB, rank_accounts=(account,)
    )
    with pytest.raises(SettingsError, match="has 31 layers, and the model has 32"):
        Engine(config)

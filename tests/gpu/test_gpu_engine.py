"""The engine on a real device: transformers' tokens with graphs and steps ahead and without, and where memory goes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from small_models import greedy

from kvplan_engine import LLM, SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROOT = Path(__file__).resolve().parents[2]
NUM_TOKENS = 24
LENGTHS = (1, 9, 130, 33, 64, 300, 17)


def config_of(name: str) -> transformers.PretrainedConfig:
    """gpt2 in its own shape, Llama with grouped heads of 128, and SmolLM2-135M's shape, two to four layers each."""
    if name == "gpt2":
        return transformers.GPT2Config(n_layer=4)
    sizes = {"llama": (1024, 8, 2, 2816), "smollm2": (576, 9, 3, 1536)}
    hidden, heads, kv_heads, inner = sizes[name]
    return transformers.LlamaConfig(
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=inner,
        num_hidden_layers=4,
        vocab_size=4096,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
    )


def random_model(name: str, folder: Path) -> transformers.PreTrainedModel:
    """transformers' model on the GPU, its checkpoint in ``folder``."""
    torch.manual_seed(0)
    config = config_of(name)
    config.initializer_range = 0.05
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(folder)
    return model.cuda()


@pytest.mark.parametrize("name", ["gpt2", "llama", "smollm2"])
def test_tokens_are_transformers_tokens(name: str, tmp_path: Path) -> None:
    """float32 without TF32, so that both sides round alike; ahead, with early launches, with graphs alone, eager."""
    model = random_model(name, tmp_path)
    rng = np.random.default_rng(2)
    prompts = [rng.integers(1, 4096, length).tolist() for length in LENGTHS]
    wanted = greedy(model, prompts, NUM_TOKENS)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    off = {"async_scheduling": False, "enable_pdl": False}
    modes = ({}, {"enable_pdl": True}, off, off | {"enforce_eager": True})
    # a small pool: what is tested does not depend on its size, and millions of blocks take seconds
    sizes = {"max_num_batched_tokens": 256, "max_num_seqs": 5, "max_model_len": 512, "gpu_memory_utilization": 0.2}
    with LLM(str(tmp_path), device="cuda", dtype="float32", **sizes) as llm:
        for settings in modes:
            llm.engine.reconfigure(**settings)
            outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
            assert [output.outputs[0].token_ids for output in outputs] == wanted, settings
            stats = llm.get_stats()
            assert (stats["num_graph_replays"] > 0) == (not settings.get("enforce_eager", False))
            assert (stats["num_steps_ahead"] > 0) == ("async_scheduling" not in settings)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("disabled", [False, True], ids=["custom all-reduce", "NCCL"])
def test_tokens_over_two_gpus_are_transformers_tokens(disabled: bool, tmp_path: Path) -> None:
    """The log says whether the ranks took their own sums; graphs and eager steps."""
    model = random_model("llama", tmp_path)
    rng = np.random.default_rng(2)
    prompts = [rng.integers(1, 4096, length).tolist() for length in LENGTHS]
    wanted = greedy(model, prompts, NUM_TOKENS)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    sizes = {"max_num_batched_tokens": 256, "max_num_seqs": 5, "max_model_len": 512, "gpu_memory_utilization": 0.2}
    shared = {"tensor_parallel_size": 2, "disable_custom_all_reduce": disabled}
    with LLM(str(tmp_path), device="cuda", dtype="float32", **sizes, **shared) as llm:
        for enforce_eager in (False, True):
            llm.engine.reconfigure(enforce_eager=enforce_eager)
            outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
            assert [output.outputs[0].token_ids for output in outputs] == wanted
            assert (llm.get_stats()["num_graph_replays"] > 0) == (not enforce_eager)


def check_half_precision(name: str, tmp_path: Path, **settings: Any) -> None:
    """Prompts in chunks, then two decode steps. A rounding may turn a close call."""
    model = random_model(name, tmp_path)
    rng = np.random.default_rng(5)
    prompts = [rng.integers(1, 4096, length).tolist() for length in range(3, 400, 13)]
    wanted = greedy(model, prompts, 3)
    sizes = {"max_num_batched_tokens": 256, "max_num_seqs": 8, "max_model_len": 512, "gpu_memory_utilization": 0.2}
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    with LLM(str(tmp_path), device="cuda", dtype="float16", **sizes, **settings) as llm:
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    agree = sum(output.outputs[0].token_ids == tokens for output, tokens in zip(outputs, wanted, strict=True))
    assert agree >= 0.75 * len(prompts)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_tokens_in_half_precision_are_nearly_all_transformers_tokens(name: str, tmp_path: Path) -> None:
    """Tensor-core kernels in an engine."""
    check_half_precision(name, tmp_path, attention_backend="cuda")


def test_so_they_are_with_skinny_products(tmp_path: Path) -> None:
    """In decode steps, whose weights are asked for early."""
    check_half_precision("llama", tmp_path, linear_backend="cuda_skinny", enable_pdl=True)


def test_the_whole_device_is_accounted_for() -> None:
    """At utilization 0.95 nothing is taken beyond the budget, graphs included."""
    config = config_of("llama").to_dict() | {"architectures": ["LlamaForCausalLM"]}
    prompts = [{"prompt_token_ids": [1 + number] * 200} for number in range(300)]
    with LLM(config, device="cuda", dtype="bfloat16", load_format="dummy", gpu_memory_utilization=0.95) as llm:
        llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
        memory, device = llm.engine.memory, llm.engine.device
        assert memory.graph_bytes > 0
        assert device.used_bytes() <= memory.budget_bytes


def test_one_engine_after_another_finds_the_memory_of_the_first() -> None:
    """Dropped, not closed: an engine lies in cycles of objects, and its memory in torch's cache."""
    config = config_of("llama").to_dict() | {"architectures": ["LlamaForCausalLM"]}
    settings = {"device": "cuda", "dtype": "bfloat16", "load_format": "dummy", "gpu_memory_utilization": 0.6}
    sizes = []
    for _ in range(2):
        llm = LLM(config, **settings)
        sizes.append(llm.engine.memory.num_blocks)
        del llm
    gc.collect()
    torch.cuda.empty_cache()
    assert abs(sizes[1] / sizes[0] - 1) < 0.02


CHUNKS = """
import sys
from kvplan_engine import LLM, SamplingParams
sizes = {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 2816}
sizes |= {"num_hidden_layers": 4, "vocab_size": 4096, "max_position_embeddings": 2048}
model = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5}
settings = {"dtype": "float32", "load_format": "dummy", "max_num_batched_tokens": 128, "max_num_seqs": 2}
settings |= {"max_model_len": 1100, "enable_prefix_caching": False, "device_memory": "2GiB"}
with LLM(model | sizes, device=sys.argv[1], **settings) as llm:
    for asynchronous in (True, False):
        llm.engine.reconfigure(async_scheduling=asynchronous)
        params = SamplingParams(temperature=0.8, seed=3, max_tokens=16, ignore_eos=True)
        prompt = {"prompt_token_ids": [7 * index % 4096 for index in range(1000)]}
        print(llm.generate([prompt], params)[0].outputs[0].token_ids)
"""


def test_random_tokens_behind_a_prompt_in_pieces_do_not_depend_on_waiting() -> None:
    """Eight pieces, of which seven sample nobody: with every launch waited for, the tokens are the same."""
    command = [sys.executable, "-c", CHUNKS, "cuda"]
    answers = [
        subprocess.run(command, env=os.environ | each, cwd=ROOT / "engine", capture_output=True, text=True, check=True)
        for each in ({}, {"CUDA_LAUNCH_BLOCKING": "1"})
    ]
    alone, blocking = (answer.stdout.splitlines() for answer in answers)
    assert len(alone) == 2
    assert alone == blocking


# Last: no GPU has run this kernel yet, and if it hung it would take the tests behind it.
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_tokens_of_prompts_by_warp_groups_are_nearly_all_transformers_tokens(name: str, tmp_path: Path) -> None:
    check_half_precision(name, tmp_path, attention_backend="cuda_wgmma")

"""Every family that the CUDA kernels run, on GPUs behind the host, with all that is fast: transformers' tokens.

Requests of one to four samples, on one GPU and over two, which fork, are cut into chunks and wait for each other.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_models import DenseCheckpoint, as_published
from engine_answers import logits_behind, random_prompts
from fake_gpu import take_gpu
from late_gpu import LateGpu
from late_ranks import LateRanks
from small_models import TABLES, Dense

from kvplan_engine import LLM, SamplingParams
from kvplan_engine.errors import SettingsError

_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "qk_rope_head_dim": 16,
}
_ROUNDED = {("head_dim", 12): 16, ("head_dim", 24): 32, ("hidden_size", 48): 64, ("mamba_n_heads", 6): 8}
_ROUNDED |= {("mamba_d_ssm", 96): 128, ("qk_rope_head_dim", 8): 16}
_NOT_IN_CUDA = {"deepseek_v32", "glm_moe_dsa"}
"""An index of keys is the CPU's alone."""
_WHOLE = {
    name
    for table, names in {
        "latent attention": TABLES["latents"],
        "layers with a state": [*TABLES["mamba"], *TABLES["states"]],
        "slopes": ["bloom", "bloom-odd", "falcon-rw", "mpt"],
        "a norm across all heads": ["olmo2", "olmo3", "minimax_m2", "olmoe", "flex_olmo"],
    }.items()
    for name in names
}
"""Families that ranks do not divide."""
_IN_CI = {
    ("arcee", 2),
    ("falcon-40b", 2),
    ("mixtral", 2),
    ("hy_v3", 1),
    ("deepseek_v3", 1),
    ("gemma2", 2),
    ("gpt-oss", 1),
}
_IN_CI |= {("gemma4-shared", 1), ("falcon-h1", 1), ("qwen3_next", 1), ("bloom", 2)}
"""Each kind of layer once; `make exhaustive` runs all."""


def _as_cuda_takes(table: str, model: Dense) -> Dense:
    """The same family with attention heads of sizes that CUDA has: 16 and 32, not 12 and 24."""
    if "num_attention_heads" not in model.values:
        return model
    values = model.values | (_LATENT if table == "latents" else {})
    rounded = {key: _ROUNDED.get((key, value), value) for key, value in values.items() if isinstance(value, int)}
    return replace(model, values=values | rounded)


FAMILIES = {
    name: _as_cuda_takes(table, model)
    for table, models in TABLES.items()
    if table not in ("small", "others")
    for name, model in models.items()
    if name not in _NOT_IN_CUDA
}
FAST: dict[str, Any] = {"attention_backend": "cuda_cascade", "linear_backend": "cuda_skinny", "enable_pdl": True}
NUM_TOKENS = 4
_NUM_ROUNDINGS = 8


def _engine(monkeypatch: pytest.MonkeyPatch, path: Path, num_ranks: int) -> tuple[LLM, Any]:
    gpu: Any = take_gpu(monkeypatch, LateGpu()) if num_ranks == 1 else LateRanks(monkeypatch, num_ranks)
    limits = {"max_num_batched_tokens": 32, "max_num_seqs": 6, "max_model_len": 112}
    return LLM(str(path), dtype="float16", tensor_parallel_size=num_ranks, **limits, **FAST), gpu


def _are_likeliest(model: torch.nn.Module, prompt: list[int], tokens: list[int]) -> bool:
    """Whether each token is transformers' likeliest, to float16's rounding.

    Where a router's choice hangs on a rounding, other experts answer: embeddings that are off by as much are tried too.
    """
    for seed in range(_NUM_ROUNDINGS):
        generator = torch.Generator().manual_seed(seed)

        def rounded(_module: object, _inputs: object, embedded: torch.Tensor, by: torch.Generator = generator) -> Any:
            return embedded * (1 + 2**-10 * torch.randn(embedded.shape, generator=by))

        embedding = model.get_input_embeddings()  # type: ignore[operator]
        hook = embedding.register_forward_hook(rounded) if seed else None
        logits = logits_behind(model, prompt, tokens)
        if hook is not None:
            hook.remove()
        short = logits.max(-1).values - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        if (short < 0.02 * logits.std()).all():
            return True
    return False


def _cases() -> list[Any]:
    every = [(name, num_ranks) for name in FAMILIES for num_ranks in (1, 2)]
    return [pytest.param(*case, marks=() if case in _IN_CI else pytest.mark.exhaustive) for case in every]


@pytest.mark.parametrize(("name", "num_ranks"), _cases())
def test_greedy_samples_are_transformers(
    name: str, num_ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = DenseCheckpoint(name, tmp_path, FAMILIES)
    as_published(name, checkpoint.path)
    checkpoint.model.half().float()  # as the engine holds them
    if num_ranks > 1 and name in _WHOLE:
        with pytest.raises(SettingsError, match=f"does not divide .* over {num_ranks} ranks"):
            _engine(monkeypatch, checkpoint.path, num_ranks)
        return
    lengths = (0 if checkpoint.shortest == 1 else NUM_TOKENS, 39, 8, 16)  # answers pass what is the shortest
    prompts = random_prompts(*(checkpoint.shortest + length for length in lengths))
    params = [SamplingParams(n=n, temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True) for n in (1, 2, 3, 4)]
    llm, gpu = _engine(monkeypatch, checkpoint.path, num_ranks)
    with llm, gpu.late(llm.engine):
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    for prompt, output in zip(prompts, outputs, strict=True):
        for sample in output.outputs:
            assert _are_likeliest(checkpoint.model, prompt, list(sample.token_ids)), (prompt, sample.token_ids)
    gpus = [gpu] if num_ranks == 1 else list(gpu.gpus.values())
    assert all(each.most_queued > 20 for each in gpus), "nothing was late"

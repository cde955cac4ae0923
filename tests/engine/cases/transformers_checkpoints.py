"""Small random models of every class of transformers that a test's table names, and an engine's answers beside them.

An engine of each answers with everything at once: ragged prompts, more than may run, longer than a step's budget, in
blocks of three tokens, in a small pool; and once more, from the prefix cache.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import small_models
import torch
import transformers
from dense_models import SIZES
from small_models import VOCAB_SIZE

from kvplan_engine import LLM, SamplingParams

_SPREAD = 0.15
"""Of weights: with transformers' own 0.02 the likeliest tokens would be near ties."""
_DELTA: dict[str, Any] = SIZES | {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
_MAMBA2: dict[str, Any] = SIZES | {
    "num_hidden_layers": 4,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_d_state": 24,
    "mamba_n_groups": 2,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
    "hidden_size": 48,
}
TOLERANCE = 1e-4
_LONGEST = 96
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3NextConfig", _DELTA),
    "qwen3_5": ("Qwen3_5TextConfig", _DELTA),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", _DELTA),
    "olmo_hybrid": ("OlmoHybridConfig", _DELTA | {"linear_num_value_heads": 2}),
    "gemma3n": (
        "Gemma3nTextConfig",
        SIZES
        | {"num_hidden_layers": 5, "head_dim": 16, "hidden_size_per_layer_input": 24, "sliding_window": 20}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"] + ["full_attention"] * 2}
        | {"num_kv_shared_layers": 2, "intermediate_size": [80] * 5, "vocab_size_per_layer_input": VOCAB_SIZE}
        | {"laurel_rank": 8, "activation_sparsity_pattern": [0.0] * 5, "tie_word_embeddings": True},
    ),
    "dbrx": (
        "DbrxConfig",
        {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 256, "vocab_size": VOCAB_SIZE}
        | {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}}
        | {"ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2}},
    ),
    "Llama4ForCausalLM": (
        "Llama4TextConfig",
        SIZES
        | {"num_hidden_layers": 4, "head_dim": 16, "attention_chunk_size": 16, "intermediate_size_mlp": 96}
        | {"num_local_experts": 4, "num_experts_per_tok": 1, "no_rope_layers": [1, 1, 1, 0]},
    ),
    "bamba-unlimited": ("BambaConfig", _MAMBA2 | {"attn_layer_indices": [2]}),
}
"""Those that no other table names."""


def tabled_models() -> dict[str, tuple[str, dict[str, Any]]]:
    """The models of the equality tests' tables: transformers' class of configs, and what it is made with."""
    found = dict(OTHERS)
    for name in small_models.ARCHITECTURES:
        config = small_models._config(name)
        found[name] = (type(config).__name__, config.to_diff_dict())
    for file in sorted(Path(__file__).parent.glob("*_models.py")):
        tables = [table for table in vars(import_module(file.stem)).values() if isinstance(table, dict)]
        for table in tables:
            found |= {name: made for name, model in table.items() if (made := _made_with(model)) is not None}
    return found


def _made_with(model: object) -> tuple[str, dict[str, Any]] | None:
    if isinstance(model, tuple) and len(model) >= 2 and str(model[0]).endswith("Config"):
        return model[0], model[1]
    config = getattr(model, "config", None)
    if isinstance(config, str) and config.endswith("Config"):
        return config, model.values  # type: ignore[attr-defined]
    return None


def small_checkpoint(config: Any, folder: Path) -> Any:
    """A random model of ``config`` of transformers in evaluation mode, saved into ``folder``."""
    torch.manual_seed(1)
    config.initializer_range = _SPREAD
    model = _class_of(config)(config).float().eval()
    with torch.no_grad():  # what begins at 0 or 1 would not show if it were forgotten
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" not in name and (tensor.ndim == 1 or not tensor.any()) and tensor.is_floating_point():
                tensor += 0.3 * torch.randn_like(tensor)
    model.save_pretrained(folder)
    return model


def _class_of(config: Any) -> Any:
    names = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    usual = type(config).__name__.replace("Config", "ForCausalLM")
    return getattr(transformers, names.get(config.model_type, usual))


def config_of(name: str, values: dict[str, Any]) -> Any:
    """A config of transformers' class ``name``."""
    return getattr(transformers, name)(**values)


def engine_of(path: Path, **settings: Any) -> LLM:
    """An engine whose pool holds little more than one of the longest sequences."""
    usual = {"dtype": "float32", "device": "cpu", "device_memory": "384MiB", "max_num_batched_tokens": 24}
    usual |= {"max_num_seqs": 4, "max_model_len": _LONGEST, "block_size": 3, "model_impl": "transformers"}
    llm = LLM(str(path), **usual | settings)  # type: ignore[arg-type]
    memory, layout = llm.engine.memory, llm.engine.scheduler.pool.layout
    taken = memory.weight_bytes + memory.activation_bytes + memory.overhead_bytes
    wanted = taken + int((1.3 * layout.blocks_for(_LONGEST, 24) + 1.5) * memory.block_bytes)
    llm.engine.reconfigure(gpu_memory_utilization=wanted / memory.device_total_bytes)
    return llm


def check_answers(model: Any, llm: LLM, lengths: tuple[int, ...], num_tokens: int) -> None:
    """Each token is the likeliest after those before, by the class alone, with its log-probability."""
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(1, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths]
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, logprobs=1)
    for prompt, output in zip(
        prompts, llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params), strict=True
    ):
        (answer,) = output.outputs
        tokens = list(answer.token_ids)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens]), use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        assert logits.argmax(-1).tolist() == tokens
        assert answer.logprobs is not None
        found = torch.tensor([each[token] for token, each in zip(tokens, answer.logprobs, strict=True)])
        assert (found - logits.log_softmax(-1).amax(-1)).abs().max() < TOLERANCE


def check_class(
    config: Any, folder: Path, lengths: tuple[int, ...] = (1, 5, 17, 40, 70, 33), num_tokens: int = 10
) -> LLM:
    """The engine that answered as a random model of ``config`` does; its last prompts came from the prefix cache."""
    model = small_checkpoint(config, folder)
    llm = engine_of(folder)
    for each in (lengths, lengths[-1:], lengths[-1:]):
        check_answers(model, llm, each, num_tokens)
    return llm

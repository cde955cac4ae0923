"""What kvplan's own engine finds of a trace's requests, one after the other: in its pool, host memory and on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cache_checks.own_rule import Found
from cache_checks.prompts import VOCABULARY, token_ids
from kvplan.fleet.requests import FleetRequest
from kvplan_engine import LLM, SamplingParams

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
}


class OwnEngine:
    """One engine, whose pool and tiers change their sizes. folder: of the files; without one no tensor is made."""

    def __init__(self, requests: Sequence[FleetRequest], block_tokens: int, folder: Path | None = None) -> None:
        self._requests, self._block_tokens, self._folder = requests, block_tokens, folder
        settings: dict[str, Any] = {
            "load_format": "none" if folder is None else "dummy",
            "device": "cpu",
            "dtype": "float32",
            "device_memory": "1GiB",
            "max_num_seqs": 1,
            "max_num_batched_tokens": 2048,
            "max_model_len": max(request.num_prompt_tokens for request in requests) + 1,
            "block_size": block_tokens,
            "kv_load_policy": "always",
        }
        self._llm = LLM(CONFIG, **settings)

    def close(self) -> None:
        """Stop it."""
        self._llm.close()

    def found(self, num_blocks: int, num_host: int = 0, num_disk: int = 0) -> list[Found]:
        """Serve all requests, one after the other, over empty tiers of these numbers of blocks."""
        self._resize(num_blocks, num_host, num_disk)
        return [self._serve(request) for request in self._requests]

    def _serve(self, request: FleetRequest) -> Found:
        before = _counts(self._llm)
        prompt = [{"prompt_token_ids": token_ids(request)}]
        self._llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=1))
        grown = [after - earlier for earlier, after in zip(before, _counts(self._llm), strict=True)]
        total, host, disk = (tokens // self._block_tokens for tokens in grown)
        return Found(total - host - disk, host, disk)

    def _resize(self, num_blocks: int, num_host: int, num_disk: int) -> None:
        """Lower the utilization until the pool has ``num_blocks``."""
        memory = self._llm.engine.memory
        changed: dict[str, Any] = {"kv_host_cache_bytes": num_host * memory.block_bytes}
        if self._folder is not None:
            changed["kv_disk_cache_dir"] = str(self._folder / f"{num_blocks}-{num_host}-{num_disk}")
            changed["kv_disk_cache_bytes"] = num_disk * (memory.block_bytes + _header_bytes()) + memory.block_bytes // 2
        taken = memory.weight_bytes + memory.activation_bytes + memory.overhead_bytes
        wanted = taken + num_blocks * memory.block_bytes + memory.block_bytes // 2
        self._llm.engine.reconfigure(gpu_memory_utilization=wanted / memory.device_total_bytes, **changed)
        self._llm.engine.reset_prefix_cache()
        assert self._llm.engine.memory.num_blocks == num_blocks, "another number of blocks than asked for"


def _header_bytes() -> int:
    from kvplan_engine.offload.disk_tier import _HEADER

    return _HEADER.size


def _counts(llm: LLM) -> tuple[int, int, int]:
    stats = llm.get_stats()
    return stats["prefix_cache_hits"], stats["kv_host_cache_hits"], stats["kv_disk_cache_hits"]

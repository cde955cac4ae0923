"""Runs vLLM's own scheduler over requests without a model, and prints what it did: a program for vLLM's Python.

A JSON document on stdin has requests and cases (``beside.vllm_records`` writes it). A line for each case says of each
request how many tokens it found, in which step it got its first and its last token, and how often it was preempted, and
for each step how many tokens it had, how many requests ran and waited. No part of vLLM is replaced but the model: every
sampled token is made up, and steps are counted instead of timed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 131072,
    "max_position_embeddings": 1048576,
}


def _spec(group: dict[str, Any], *, exports_states: bool) -> Any:
    size, kind, window = group["block_size"], group["kind"], group["window_tokens"]
    if kind == "state":
        return MambaSpec(
            size,
            ((16,),),
            (torch.float32,),
            mamba_cache_mode="align",
            num_prefill_checkpoint_blocks=int(exports_states),
            prefill_checkpoint_alignment=size if exports_states else None,
        )
    common = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    if kind == "sliding":
        return SlidingWindowSpec(size, sliding_window=window, **common)
    if kind == "chunked":
        return ChunkedLocalAttentionSpec(size, attention_chunk_size=window, **common)
    return FullAttentionSpec(size, **common)


def _scheduler(asked: dict[str, Any], folder: Path) -> tuple[Scheduler, int]:
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    groups = [group for group in asked["groups"] for _ in range(group["count"])]
    has_states = any(group["kind"] == "state" for group in groups)
    size = next(group["block_size"] for group in groups if group["kind"] in ("state", "full", "sliding"))
    cache = CacheConfig(
        block_size=size,
        enable_prefix_caching=True,
        prefix_cache_retention_interval=asked["retention_interval"],
    )
    if has_states:
        cache.mamba_cache_mode, cache.mamba_block_size = "align", size
    config = VllmConfig(
        scheduler_config=SchedulerConfig(
            max_num_seqs=asked["max_num_seqs"],
            max_num_batched_tokens=asked["max_num_batched_tokens"],
            max_model_len=asked["max_model_len"],
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        model_config=ModelConfig(str(folder), skip_tokenizer_init=True, max_model_len=asked["max_model_len"]),
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.block_size = size
    pool = KVCacheConfig(
        asked["num_blocks"] + 1,  # one stands for blocks that are not there
        [],
        [
            KVCacheGroupSpec([f"layer.{number}"], _spec(group, exports_states=asked["exports_states"]))
            for number, group in enumerate(groups)
        ],
        prefix_cache_retention_interval=asked["retention_interval"],
    )
    cache.num_gpu_blocks = pool.num_blocks
    block_size, hash_block_size = resolve_kv_cache_block_sizes(pool, config)
    scheduler = Scheduler(
        config, pool, StructuredOutputManager(config), block_size, hash_block_size=hash_block_size, log_stats=True
    )
    return scheduler, hash_block_size


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the record of ``asked``."""
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as folder:
        scheduler, hash_block_size = _scheduler(asked, Path(folder))
    hasher = get_request_block_hasher(hash_block_size, sha256)
    coming, requests, steps, now = list(reversed(asked["requests"])), {}, [], 0
    seen: dict[str, dict[str, Any]] = {}
    while coming or scheduler.has_unfinished_requests():
        while coming and coming[-1]["at_step"] <= now:
            one = coming.pop()
            params = SamplingParams(max_tokens=one["num_output_tokens"], ignore_eos=True, temperature=0.0)
            name = str(one["number"])
            requests[name] = Request(name, one["prompt_token_ids"], params, None, block_hasher=hasher)
            seen[name] = {"hit": None, "first": None, "last": None, "preemptions": 0}
            scheduler.add_request(requests[name])
        if not scheduler.has_unfinished_requests():
            now = max(now, coming[-1]["at_step"])
            continue
        steps.append(_step(scheduler, requests, seen, now))
        now += 1
    return {"requests": {int(name): each for name, each in seen.items()}, "steps": steps}


def _step(
    scheduler: Scheduler, requests: dict[str, Request], seen: dict[str, dict[str, Any]], now: int
) -> dict[str, int]:
    output = scheduler.schedule()
    for new in output.scheduled_new_reqs:
        if seen[new.req_id]["hit"] is None:
            seen[new.req_id]["hit"] = new.num_computed_tokens
    numbers = output.num_scheduled_tokens
    names = list(numbers)
    sampled: list[list[int]] = []
    for name in names:
        request = requests[name]
        is_done = request.num_computed_tokens >= request.num_tokens
        sampled.append([1 + (now * 31 + int(name) * 17) % 100_000] if is_done else [])
        if is_done:
            if seen[name]["first"] is None:
                seen[name]["first"] = now + 1
            seen[name]["last"] = now + 1
        seen[name]["preemptions"] = request.num_preemptions
    record = {
        "tokens": output.total_num_scheduled_tokens,
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting) + len(scheduler.skipped_waiting)
        if hasattr(scheduler, "skipped_waiting")
        else len(scheduler.waiting),
    }
    result = ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, sampled)
    scheduler.update_from_output(output, result)
    return record


if __name__ == "__main__":
    document = json.load(sys.stdin)
    for case in document.pop("cases"):
        print("RECORD " + json.dumps(run(document | case)), flush=True)

"""For which settings the speeds of kvplan's own engine on a GPU stand in for vLLM's, and for which they do not.

By reading both and by counting launches, instructions and bytes; no GPU has compared them yet (csrc/cuda/README.md). A
dense model in 16 bits on one GPU is within some percent while requests have up to 8,192 tokens. Beyond that the time to
the first token grows with attention, which is 12 to 40 % slower here. Steps of several ranks and of experts, and
weights in few bits, take 1.3 to 2 times as long as vLLM's. What else a model may have was compared with nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

from kvplan.runs.columns import Row
from kvplan.runs.directory import Manifest
from kvplan.runs.rows import OWN_ENGINE, has_speed

LONGEST_CLOSE_TOKENS: Final = 8192
_CLOSE_DTYPES: Final = ("bfloat16", "float16")


class StandIn(TypedDict):
    """num_settings: that were timed; num_close: of these, whose speeds stand in. beyond: why those of others do not."""

    num_settings: int
    num_close: int
    beyond: list[str]
    sentence: str


def stand_in(manifest: Manifest, rows: Sequence[Row]) -> StandIn | None:
    """What may be concluded for vLLM; None where nothing was timed on a GPU by kvplan's own engine.

    Of a run of an earlier version, which does not say what its model is made of, nothing is said.
    """
    parts, told = manifest["model"].get("parts"), manifest.get("workload", {}).get("longest_request_tokens")
    timed = [row for row in rows if has_speed(row) and row.get("device") == "cuda" and row.get("engine") == OWN_ENGINE]
    if parts is None or not timed:
        return None
    of_settings = {_key(row): _beyond(row, parts, told) for row in timed}
    beyond = list(dict.fromkeys(reason for reasons in of_settings.values() for reason in reasons))
    num_close = sum(not reasons for reasons in of_settings.values())
    sentence = _sentence(num_close, len(of_settings), beyond)
    return {"num_settings": len(of_settings), "num_close": num_close, "beyond": beyond, "sentence": sentence}


def _key(row: Row) -> tuple[object, ...]:
    cells: Mapping[str, Any] = row
    names = ("gpu_memory_utilization", "max_num_seqs", "block_size", "max_model_len", "max_num_batched_tokens")
    others = ("dtype", "kv_cache_dtype", "quantization", "tensor_parallel_size", "pipeline_parallel_size", "max_loras")
    return tuple(cells.get(name) for name in (*names, *others, "num_speculative_tokens"))


def _beyond(row: Row, parts: Sequence[str], longest_request: int | None) -> list[str]:
    """Why the speeds of a row do not stand in; [] where they do."""
    found = list(parts)
    num_ranks = (row.get("tensor_parallel_size") or 1) * (row.get("pipeline_parallel_size") or 1)
    if num_ranks > 1:
        found.append(f"{num_ranks} GPUs")
    if row.get("quantization") not in (None, "auto", "none"):
        found.append(f"quantization {row['quantization']}")
    elif row.get("dtype") not in _CLOSE_DTYPES:
        found.append(f"dtype {row['dtype']}")
    if row.get("model_impl") == "transformers":
        found.append("a class of transformers")
    if row.get("max_loras"):
        found.append("adapters")
    if row.get("num_speculative_tokens"):
        found.append("speculation")
    context = row["max_model_len"] or 0
    tokens = context if longest_request is None else min(context, longest_request)
    if tokens > LONGEST_CLOSE_TOKENS:
        found.append(f"requests of up to {tokens:,} tokens")
    return found


def _sentence(num_close: int, num_settings: int, beyond: Sequence[str]) -> str:
    limits = f"a dense model in 16 bits on one GPU, requests of up to {LONGEST_CLOSE_TOKENS:,} tokens"
    by_estimate = "by estimate: no GPU has compared them"
    pools = "Blocks and boundaries are those of kvplan's engine in any case."
    if not beyond:
        return f"Speeds are close enough to stand in for vLLM's ({limits}), {by_estimate}. {pools}"
    why, way_out = ", ".join(beyond), "measure vLLM itself with --engine vllm"
    if not num_close:
        return f"Speeds do not stand in for vLLM's, because of {why} (they do for {limits}): {way_out}. {pools}"
    which = f"{num_close} of {num_settings} settings"
    others = f"For the others, with {why}, {way_out}."
    return f"Speeds stand in for vLLM's in {which} ({limits}), {by_estimate}. {others} {pools}"

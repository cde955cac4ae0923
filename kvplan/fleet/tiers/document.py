"""The answer of ``kvplan cache --json``: amounts in bytes, times in seconds over the trace."""

from __future__ import annotations

from typing import Any, Final

from kvplan.fleet.tiers.question import CacheAnswer, LayoutAnswer
from kvplan.fleet.tiers.settings_lines import setting_lines
from kvplan.fleet.tiers.words import further_sentences, layout_name, verdict_sentence
from kvplan.fleet.tiers.worth import TierWorth

SCHEMA: Final = "kvplan.cache/1"


def cache_document(answer: CacheAnswer) -> dict[str, Any]:
    """Return the whole answer."""
    return {
        "schema": SCHEMA,
        "trace": {
            "name": answer.trace,
            "num_requests": answer.num_requests,
            "num_left_out": answer.num_left_out,
            "num_prompt_tokens": answer.num_prompt_tokens,
            "seconds": answer.seconds,
            "notes": list(answer.notes),
        },
        "model": answer.model,
        "engine": f"vllm@{answer.release}",
        "replicas": answer.question.num_replicas,
        "router": answer.question.split,
        "curves": [_curve(answer, layout) for layout in answer.layouts],
    }


def _curve(answer: CacheAnswer, layout: LayoutAnswer) -> dict[str, Any]:
    cache = layout.curve.layout
    return {
        "name": layout_name(layout),
        "gpu": layout.gpu.gpu.id,
        "num_gpus": layout.num_gpus,
        "kv_cache_dtype": cache.kv_cache_dtype,
        "hit_unit_tokens": cache.unit_tokens,
        "token_bytes": cache.token_bytes,
        "end_bytes": cache.end_bytes,
        "keep_everything_bytes": layout.needed_bytes,
        "break_even_tokens": layout.break_even_tokens,
        "prefill_seconds_without_cache": layout.prefill_seconds,
        "verdict": layout.asked.verdict,
        "answer": verdict_sentence(answer, layout),
        "sentences": list(further_sentences(answer, layout)),
        "hbm": _tier(layout, layout.in_pool),
        "host_bandwidth_bytes_per_second": layout.host.bytes_per_second,
        "nvme_bandwidth_bytes_per_second": layout.nvme.bytes_per_second,
        "host": [_tier(layout, tier) for tier in layout.tiers],
        "asked_host": _tier(layout, layout.asked),
        "asked_nvme": None if layout.asked_nvme is None else _tier(layout, layout.asked_nvme),
        "reuse_distances": [
            {"share": each.share, "seconds": each.seconds if answer.seconds else None, "bytes": each.num_bytes}
            for each in layout.distances
        ],
        "settings": [
            {"engine": each.engine, "lines": list(each.lines), "note": each.note}
            for each in setting_lines(layout, answer.model, is_shared=answer.question.split == "shared")
        ],
    }


def _tier(layout: LayoutAnswer, tier: TierWorth) -> dict[str, Any]:
    return {
        "bytes": tier.size_bytes,
        "hit_tokens": tier.num_tokens,
        "hit_share": layout.share(tier.num_tokens),
        "belady_share": tier.best_share,
        "extra_tokens": tier.num_extra_tokens,
        "saved_prefill_seconds": tier.saved_seconds,
        "load_seconds": tier.load_seconds,
        "store_seconds": tier.store_seconds,
        "verdict": tier.verdict,
    }

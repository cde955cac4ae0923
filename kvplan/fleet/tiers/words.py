"""What a curve says in sentences: the answer first, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kvplan.fleet.tiers.question import CacheAnswer, LayoutAnswer
from kvplan.fleet.tiers.worth import TierWorth, enough_of
from kvplan.units import GIB, TIB, format_bytes, plural
from kvplan.workload.files import span_text

_HOURS_A_MONTH: Final = 730
_BUSY: Final = 3600.0


def layout_name(layout: LayoutAnswer) -> str:
    """Return ``4 x h100-sxm, bfloat16 KV``."""
    gpu = layout.gpu
    name = gpu.gpu.id if gpu.num_gpus == 1 else f"{gpu.num_gpus} x {gpu.gpu.id}"
    return f"{name}, {layout.curve.layout.kv_cache_dtype} KV"


def replicas_text(answer: CacheAnswer) -> str:
    """Return ``4 replicas (prefix)``, or ``1 replica``."""
    question = answer.question
    count = plural(question.num_replicas, "replica")
    return f"{count} ({question.split})" if question.num_replicas > 1 else count


def verdict_sentence(answer: CacheAnswer, layout: LayoutAnswer) -> str:
    """Say whether to buy host memory, how much, and why."""
    tier, question = layout.asked, answer.question
    size, before = _size(tier), _percent(layout.share(layout.in_pool.num_tokens))
    where = "shared by all replicas" if question.split == "shared" else "a replica"
    if question.split != "shared" and question.num_replicas == 1:
        where = "for the replica"
    after = _percent(layout.share(tier.num_tokens))
    hits = f"{after} of prompt tokens are found{f' instead of {before}' if before != after else ', as without'}"
    if tier.verdict == "harms":
        why = (
            "it finds nothing that the GPUs' own cache has not" if not tier.num_extra_tokens else "loading takes longer"
        )
        return f"Do not buy: {size} of host memory {where} brings nothing: {why} ({hits})."
    gain = f"{_saved(answer, tier.saved_seconds)} less, {_saved(answer, tier.load_seconds)} to load"
    if tier.verdict == "open":
        return (
            f"Open: with {size} of host memory {where} {hits}, prefill takes {gain}, and writing "
            f"{_saved(answer, tier.store_seconds)} on the bus may cost as much."
        )
    return f"Buy {size} of host memory {where}: {hits}, prefill takes {gain}{_worth(answer, layout)}."


def _worth(answer: CacheAnswer, layout: LayoutAnswer) -> str:
    """Return what the saving is in GPUs, and up to which price of memory it pays."""
    if not answer.seconds:
        return ""
    tier, num_caches = layout.asked, _num_tiers(answer, layout)
    engines = answer.per_hour(tier.net_seconds) / _BUSY
    gpus = engines * layout.curve.layout.num_ranks
    text = f"; the work of {gpus:.2g} GPUs"
    if layout.usd_per_hour is None:
        return text
    each = layout.usd_per_hour / layout.num_gpus
    price = each * gpus * _HOURS_A_MONTH / (tier.size_bytes / GIB * num_caches)
    return f"{text}, worth up to ${price:,.2f} per GiB and month"


def _num_tiers(answer: CacheAnswer, layout: LayoutAnswer) -> int:
    if answer.question.split == "shared":
        return 1
    return answer.question.num_replicas * layout.curve.layout.num_engines


def further_sentences(answer: CacheAnswer, layout: LayoutAnswer) -> Iterator[str]:
    """Say what the answer rests on: working set, distances, links, and where a tier harms."""
    cache = layout.curve.layout
    yield from _beyond_a_node(answer, layout)
    ends = f" and {format_bytes(cache.end_bytes)} where a prompt can be resumed" if cache.end_bytes else ""
    yield (
        f"A token takes {cache.token_bytes / 1024:,.4g} KiB of host memory{ends}; hits are multiples of "
        f"{cache.unit_tokens:,} tokens. Keeping everything takes {format_bytes(layout.needed_bytes)}."
    )
    if layout.distances:
        by_share = [
            f"{100 * each.share:g} % after less than {format_bytes(each.num_bytes, digits=1)}"
            + (f" and {span_text(each.seconds)}" if answer.seconds else "")
            for each in layout.distances
        ]
        yield f"Of the tokens that are used again: {', '.join(by_share)} of other requests."
    link, most = layout.host, layout.break_even_tokens
    pays = "no hit is loaded sooner than it is computed" if most is None else _pays_from(most)
    yield f"Host memory at {link.bytes_per_second / 1e9:.3g} GB/s a GPU ({link.source}): {pays}."
    harmful = [tier for tier in layout.tiers if tier.verdict == "harms"]
    if harmful and layout.asked not in harmful:
        yield (
            f"{_size(harmful[-1])} or less would only be written to: it is smaller than what the GPUs' own cache holds "
            "or than the distance to the next use."
        )
    if layout.asked_nvme is not None:
        yield _nvme_sentence(answer, layout, layout.asked_nvme)
    if answer.seconds and answer.per_hour(layout.prefill_seconds) > _BUSY * _num_engines(answer, layout):
        needed = answer.per_hour(layout.prefill_seconds - layout.asked.saved_seconds) / _BUSY
        yield (
            f"Prompts alone keep {answer.per_hour(layout.prefill_seconds) / _BUSY:.2g} engines busy without a cache, "
            f"{needed:.2g} with this one: --replicas says over how many the trace is split."
        )


def _beyond_a_node(answer: CacheAnswer, layout: LayoutAnswer) -> Iterator[str]:
    """Say what a size is worth that nodes usually do not have: the one asked about, or one that would find more."""
    usual, is_asked = layout.usual_bytes, answer.question.host_bytes is not None
    tier = layout.asked if is_asked else enough_of(layout.tiers)
    if tier.size_bytes <= usual or tier.verdict == "harms":
        return
    would = "" if is_asked else f" would find {_percent(layout.share(tier.num_tokens))}, but"
    yield (
        f"{_size(tier)}{would} is more than nodes usually have: 2 TB for eight GPUs are {format_bytes(usual)} for "
        f"{layout.gpus_of_tier}. --host-memory asks about what yours has."
    )


def _num_engines(answer: CacheAnswer, layout: LayoutAnswer) -> int:
    return answer.question.num_replicas * layout.curve.layout.num_engines


def _pays_from(tokens: int) -> str:
    return (
        "every hit is loaded sooner than it is computed"
        if tokens == 1
        else (f"hits of {tokens:,} tokens and more are loaded sooner than they are computed")
    )


def _nvme_sentence(answer: CacheAnswer, layout: LayoutAnswer, tier: TierWorth) -> str:
    verdicts = {"pays": "pays", "open": "may pay", "harms": "does not pay"}
    link = layout.nvme
    return (
        f"{_size(tier)} of NVMe below it at {link.bytes_per_second / 1e9:.3g} GB/s a host ({link.source}) "
        f"{verdicts[tier.verdict]}: {_percent(layout.share(tier.num_tokens))} are found, prefill takes "
        f"{_saved(answer, tier.saved_seconds)} less, {_saved(answer, tier.load_seconds)} to load and "
        f"{_saved(answer, tier.store_seconds)} to write."
    )


def _saved(answer: CacheAnswer, seconds: float) -> str:
    return f"{answer.per_hour(seconds):,.0f} s{' an hour' if answer.seconds else ''}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def size_text(num_bytes: int) -> str:
    """Return ``2 TiB`` where it is whole, else GiB."""
    if num_bytes >= TIB and num_bytes % TIB == 0:
        return f"{num_bytes // TIB} TiB"
    return f"{num_bytes / GIB:,.4g} GiB"


def _size(tier: TierWorth) -> str:
    return size_text(tier.size_bytes)

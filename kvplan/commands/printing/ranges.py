"""How the interval around a deployment's KV cache is printed: as a column, and cause by cause under --explain."""

from __future__ import annotations

from kvplan.commands.printing.render import print_sentence
from kvplan.estimate.answer import EstimateAnswer
from kvplan.estimate.placed.placement import SizedDeployment
from kvplan.units import format_gib

RANGE_HEAD = "+/-"
RANGE_MEANING = f"{RANGE_HEAD} is a 90 % interval"


def has_ranges(answer: EstimateAnswer) -> bool:
    """Whether any deployment has an interval wider than a point."""
    return any(_has_width(each) for each in answer.deployments)


def _has_width(deployment: SizedDeployment) -> bool:
    return deployment.kv_range is not None and bool(deployment.kv_range.causes)


def range_cell(deployment: SizedDeployment) -> str:
    """``1.2 %``: how far the KV tokens can lie from what is predicted; blank without an interval.

    ``x 2.6`` where that is more, ``0 to 37,000`` where there may be none at all.
    """
    found, tokens = deployment.kv_cache_tokens_range, deployment.kv_cache_tokens
    if found is None or not tokens or not _has_width(deployment):
        return ""
    low, high = found
    if low <= 0:
        return f"0 to {high:,}"
    share = max(tokens - low, high - tokens) / tokens
    return f"{100 * share:.1f} %" if share < 1 else f"x {1 + share:.1f}"


def limit_cell(deployment: SizedDeployment) -> str:
    """What stands in the way, for certain or at the low end of the interval; blank where nothing does."""
    if not deployment.fits:
        return deployment.limit or "does not fit"
    seqs, asked = deployment.most_num_seqs_range, deployment.settings.max_num_seqs
    if seqs is not None and 0 < seqs[0] < asked:
        return f"may be refused: max_num_seqs {asked:,}, {seqs[0]:,} to {seqs[1]:,} state blocks"
    found = deployment.max_concurrency_range
    return "may not fit: at the low end there is no room for one sequence" if found is not None and found[0] < 1 else ""


def print_ranges(answer: EstimateAnswer) -> None:
    """The interval of every deployment and what it comes from, in GiB of one GPU."""
    for deployment in answer.deployments:
        found = deployment.kv_range
        if found is None or not found.causes:
            continue
        (low, high), (few, many) = found.pool_bytes, found.tokens
        pool = f"{format_gib(low)} to {format_gib(high)} GiB of KV pool, {few:,} to {many:,} tokens"
        print_sentence(
            f"{deployment.counted_gpu}: 9 of 10 start-ups have {pool}; each cause alone (they add as squares):",
            further="    ",
        )
        for each in found.causes:
            print_sentence(f"{RANGE_HEAD} {format_gib(each.num_bytes)} {each.sentence}", indent="    ", further=" " * 6)
        if found.known is not None:
            print_sentence(found.known.sentence, indent="    ", further=" " * 6)


def range_warnings(answer: EstimateAnswer) -> tuple[str, ...]:
    """Return what nobody has compared of these deployments, each sentence once."""
    known = (each.kv_range.known for each in answer.deployments if each.kv_range is not None)
    return tuple(dict.fromkeys(each.warning for each in known if each is not None and each.warning is not None))

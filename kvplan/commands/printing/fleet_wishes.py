"""What ``kvplan plan`` prints of pools and policies beside a trace's fleet."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.commands.printing.render import print_sentence, print_table, say
from kvplan.estimate.speed.queueing.figures import Distribution
from kvplan.fleet.apart.compare import PlayedSplit
from kvplan.fleet.scaling.search import TriedPolicy
from kvplan.planner.fleets.policies import PolicyAnswer
from kvplan.planner.fleets.pools import PoolAnswer
from kvplan.units import plural

_MOST_POLICIES = 3


def print_pools(answer: PoolAnswer) -> None:
    """The fleet and the best pools side by side, in the busiest window."""
    found = answer.comparison
    rows = [_split_row(each, answer.prefill_tokens, by_load=found.by_load) for each in (found.together, *found.splits)]
    ratios = f"{answer.rules.engine}'s hand-over, {answer.link_bytes_per_second / 1e9:g} GB/s a GPU ({answer.link})"
    head = ("replicas", "GPUs", "prefill step", "TTFT p50", "p99 ms", "TPOT p50", "p95 ms", "KV moved p99", "most load")
    if not found.by_load:
        head = (*head[:-1], "requests/s")
    say()
    print_table(f"Prefill and decode apart in the busiest window ({ratios}):", head, rows, text_columns=(0,))
    if len(found.splits) < found.num_ratios:
        print_sentence(f"the best {len(found.splits)} of {found.num_ratios} ratios")


def _split_row(played: PlayedSplit, budgets: Sequence[int], *, by_load: bool) -> tuple[str, ...]:
    split = played.split
    name = (
        f"{split.num_prefill} prefill + {split.num_decode} decode" if split.is_apart else f"{split.num_decode} for both"
    )
    taken = f"{played.requests_per_second:.2f}"
    if by_load:
        taken = f"{played.most_speed:.2f} x" if played.most_speed else "below 0.13 x"
    return (
        name,
        str(played.num_gpus),
        f"{budgets[split.prefill]:,}",
        _ms(played.ttft, "p50"),
        _ms(played.ttft, "p99"),
        _ms(played.tpot, "p50"),
        _ms(played.tpot, "p95"),
        _ms(played.transfers, "p99"),
        taken,
    )


def _ms(found: Distribution | None, which: str) -> str:
    if found is None:
        return "-"
    seconds = {"p50": found.median, "p95": found.p95, "p99": found.p99}[which]
    return f"{1000 * seconds:,.0f}" if seconds >= 0.01 else f"{1000 * seconds:.2g}"


def print_policies(answer: PolicyAnswer) -> None:
    """A fixed fleet, the policies that keep the level, and what an autoscaler without delays would take."""
    found = answer.found
    always = plural(found.fixed.num_replicas + found.fixed.num_spare, "replica")
    fixed = (f"{always} always", "-", *_cost(answer, found.fixed.replica_seconds))
    perfect = ("an autoscaler without delays", "-", *_cost(answer, found.perfect_replica_seconds))
    kept = [each for each in found.tried if each.keeps]
    rows = [_policy_row(answer, each) for each in kept[:_MOST_POLICIES]]
    say()
    print_table(None, ("kept by", "starts", "replica-hours", "$"), [fixed, *rows, perfect], text_columns=(0,))
    missed = len(found.tried) - len(kept)
    print_sentence(f"of {len(found.tried)} policies played, {missed} miss the service level; --json has all")
    print_sentence(answer.cold_start.note)


def _policy_row(answer: PolicyAnswer, tried: TriedPolicy) -> tuple[str, ...]:
    played = tried.played
    return (played.policy.text, str(played.num_starts), *_cost(answer, played.replica_seconds))


def _cost(answer: PolicyAnswer, replica_seconds: float) -> tuple[str, str]:
    usd = answer.usd(replica_seconds)
    return f"{replica_seconds / 3600:.2f}", "-" if usd is None else f"{usd:,.2f}"

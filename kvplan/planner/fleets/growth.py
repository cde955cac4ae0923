"""How much more load a fleet takes, and what fails first when there is more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from kvplan.planner.choices.verdict import ExpectedBound
from kvplan.planner.fleets.playing import Played, Player

_MOST_FACTOR: Final = 8.0
_PRECISION: Final = 1.02
_FULL: Final = 0.98
Resource = Literal["kv", "seats", "prefill", "decode"]

WORDS: Final[dict[Resource, str]] = {
    "kv": "the KV cache is full, and requests wait for blocks",
    "seats": "all seats are taken (max_num_seqs), and requests wait for one",
    "prefill": "prompts wait to be read: each step's token budget is used up",
    "decode": "steps get longer: more sequences decode at once",
}


@dataclass(frozen=True, slots=True)
class Growth:
    """factor: times as fast as the trace may be sent with the level kept; is_capped: it may be more. breaks: the bound
    that is not kept just beyond, at ``factor_beyond``, with its figure there; resource: what is short then."""

    factor: float
    is_capped: bool
    breaks: ExpectedBound | None = None
    factor_beyond: float = 1.0
    resource: Resource | None = None


def growth_of(best: Played, player: Player) -> Growth:
    """Replay the busiest window faster and faster. The windows' length stays as it is."""

    def at(factor: float, *, gives_up: bool = True) -> Played:
        part = player.demand.busiest.faster(factor)
        return player.play(best.plan, part, ("faster", round(factor, 4)), gives_up=gives_up)

    low, high = 1.0, 1.25
    while at(high).keeps:
        if high >= _MOST_FACTOR:
            return Growth(high, True)
        low, high = high, high * 1.25
    while high > low * _PRECISION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if at(middle).keeps else (low, middle)
    beyond = at(high, gives_up=False)
    return Growth(low, False, beyond.verdict.deciding.worst, high, _resource(beyond))


def _resource(played: Played) -> Resource:
    """What is short in the worst window: blocks, seats, the token budget, or else decoding itself."""
    window, plan = played.verdict.deciding.window, played.plan
    seats = plan.replicas * plan.found.sizes.num_seats
    if window.most_kv_usage >= _FULL or window.num_preemptions:
        return "kv"
    busiest = max((sample.num_running for sample in played.play.samples), default=0)
    if window.most_waiting and busiest >= _FULL * seats:
        return "seats"
    worst = played.verdict.deciding.worst
    return "prefill" if worst is not None and worst.bound.name == "ttft" else "decode"

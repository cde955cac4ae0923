"""How requests follow and resemble each other: pauses of users, how lengths spread, and what prompts share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, get_args

from kvplan.errors import UsageError
from kvplan.estimate.speed.queueing.loads import Spread, TracedLoad
from kvplan.estimate.speed.queueing.sharing import PromptSharing
from kvplan.setting_values import parse_share
from kvplan.units import parse_tokens

_DURATION: Final = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,9})?)\s*(?P<unit>ms|s|m|min|)")
_UNITS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0}
_MOST_EVEN: Final = 1000
"""The gaps of arrivals differ by 3 % then."""
SPREADS: Final = tuple(each for each in get_args(Spread) if each != "quantiles")

_LONGEST_SHARES: Final[dict[Spread, float]] = {"fixed": 1.0, "uniform": 4 / 3, "exponential": 5.0}
"""Longest length over the mean. Of exponential ones, which have no longest, one in 150 would be longer."""

_SPREAD_SENTENCES: Final[dict[Spread, str]] = {
    "fixed": "All prompts are equally long, and so are all answers, so that users move in lockstep.",
    "uniform": "Lengths spread from two thirds of their means to four thirds; those of chats spread wider, which p99 "
    "feels (--length-spread exponential).",
    "exponential": "Lengths spread as those of chats do, exponentially.",
}


@dataclass(frozen=True, slots=True)
class LoadPattern:
    """``think_seconds``: a user's mean pause between an answer and the next request. ``burstiness``: of arrivals at a
    rate, 1 for a Poisson process and less for a burstier one. ``trace``: whose lengths and arrivals the requests have,
    instead.

    ``length_spread``: of prompts and answers, uniform from two thirds of the mean to four thirds where nothing is said.
    Equal ones would move in lockstep, which no load does. Those of chats have a standard deviation of about their mean,
    as exponential ones do: 1.13 x the mean of the prompts and 0.85 x that of the answers in ShareGPT
    (tools/published_speeds/sharegpt.csv).
    """

    think_seconds: float = 0.0
    length_spread: Spread = "uniform"
    sharing: PromptSharing = PromptSharing()  # noqa: RUF009 - frozen
    burstiness: float = 1.0
    trace: TracedLoad | None = None

    @property
    def longest_share(self) -> float:
        """The longest prompt or answer as a multiple of their mean."""
        return _LONGEST_SHARES[self.length_spread]

    def sentence(self, *, of_users: bool) -> str:
        """What is assumed of a load, for people."""
        who = "Every user always has a request in progress" if of_users else self._arrivals()
        if of_users and self.think_seconds:
            who = f"Every user thinks for {self.think_seconds:g} s on average before the next request"
        spread = _SPREAD_SENTENCES[self.length_spread]
        if self.trace is not None:
            spread = f"Lengths are those of {self.trace.name}."
        return f"{who}, and {self._shared()}. {spread}"

    def _arrivals(self) -> str:
        if self.trace is not None and self.trace.gaps:
            return f"Requests arrive as in the busiest part of {self.trace.name}"
        if self.burstiness == 1.0:
            return "Requests arrive independently of each other"
        how = "in bursts" if self.burstiness < 1.0 else "more evenly than at random"
        return f"Requests arrive {how} (burstiness {self.burstiness:g})"

    def _shared(self) -> str:
        sharing = self.sharing
        if sharing.hit_rate is not None:
            return f"{100 * sharing.hit_rate:g} % of every prompt's tokens are found in the prefix cache, as was stated"
        parts = []
        if sharing.prefix_tokens:
            tokens = f"{sharing.prefix_tokens:,} tokens"
            which = f"one of {sharing.num_prefixes:,} prefixes of {tokens}, each as likely as the others"
            parts.append(f"every prompt begins with {f'the same {tokens}' if sharing.num_prefixes == 1 else which}")
        if sharing.turns > 1:
            parts.append(f"a chat has {sharing.turns:,} turns, the earlier of which are in each prompt")
        if self.trace is not None and self.trace.shares_prompts:
            return "what its prompts share is computed every time"
        return " and ".join(parts) or "no prompt shares a prefix with another"


def load_pattern(
    *,
    think_time: str | None = None,
    turns: int | None = None,
    prefix_len: str | None = None,
    num_prefixes: int | None = None,
    prefix_hit_rate: str | None = None,
    length_spread: str | None = None,
    burstiness: float | None = None,
) -> LoadPattern:
    """The pattern that options of ``kvplan plan`` describe. UsageError for a value that cannot be read."""
    default = LoadPattern()
    return LoadPattern(
        think_seconds=_seconds(think_time, "--think-time"),
        length_spread=default.length_spread if length_spread is None else _spread(length_spread),
        sharing=_sharing(turns, prefix_len, num_prefixes, prefix_hit_rate),
        burstiness=default.burstiness if burstiness is None else _shape(burstiness),
    )


def _sharing(
    turns: int | None, prefix_len: str | None, num_prefixes: int | None, hit_rate: str | None
) -> PromptSharing:
    if num_prefixes is not None and prefix_len is None:
        raise UsageError("--num-prefixes needs --prefix-len.", hint="for example --prefix-len 2k --num-prefixes 20")
    if hit_rate is not None and (prefix_len is not None or turns is not None):
        other = "--prefix-len" if prefix_len is not None else "--turns"
        hint = "give --prefix-hit-rate where a server's hit rate is known, or what prompts share, and it is worked out"
        raise UsageError(f"--prefix-hit-rate cannot be used with {other}.", hint=hint)
    share = None if hit_rate is None else parse_share(hit_rate, "--prefix-hit-rate", example="80%")
    if share is not None and not 0 <= share < 1:
        hint = "for example --prefix-hit-rate 0.8; the last token of a prompt is always computed"
        raise UsageError("--prefix-hit-rate must be from 0 to less than 1.", hint=hint)
    return PromptSharing(
        prefix_tokens=0 if prefix_len is None else parse_tokens(prefix_len),
        num_prefixes=_count(num_prefixes, "--num-prefixes"),
        turns=_count(turns, "--turns"),
        hit_rate=share,
    )


def _count(number: int | None, option: str) -> int:
    if number is not None and number < 1:
        raise UsageError(f"{option} must be 1 or more, got {number}.", hint=f"for example {option} 5")
    return 1 if number is None else number


def _shape(burstiness: float) -> float:
    if not 0 < burstiness <= _MOST_EVEN:
        hint = "1 is a Poisson process, and less is burstier: for example --burstiness 0.5"
        raise UsageError(f"--burstiness must be more than 0 and at most {_MOST_EVEN}, got {burstiness:g}.", hint=hint)
    return burstiness


def _spread(text: str) -> Spread:
    for each in SPREADS:
        if text.strip().casefold() == each:
            return each
    raise UsageError(f"Unknown --length-spread '{text}'.", hint="one of " + ", ".join(SPREADS))


def _seconds(text: str | None, option: str) -> float:
    """``20``, ``20s``, ``500ms`` or ``1.5m`` -> seconds; nothing -> 0. UsageError for anything else."""
    if text is None:
        return 0.0
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{option} '{text}' is not a number of seconds.", hint=f"for example {option} 20s")
    return float(found["number"]) * _UNITS[found["unit"] or "s"]

"""What ``kvplan explain`` prints."""

from __future__ import annotations

from typing import Any

from kvplan.commands.printing.render import print_markdown, print_sentence, print_table, say
from kvplan.explaining.account import Counts
from kvplan.explaining.explanation import LogAccount, difference_gib
from kvplan.explaining.reading import shown_name
from kvplan.explaining.stated_settings import named_settings
from kvplan.explaining.ways_out import in_words_of
from kvplan.settings import KNOBS
from kvplan.units import format_gib

_SAID_ELSEWHERE = ("device_memory_bytes", "has_flashinfer", "estimate_cudagraphs")
"""The table has the first; nobody sets the second; the third is an environment variable."""


def print_explanation(answer: LogAccount, *, as_markdown: bool = False) -> None:
    """Print the account of one start: what the log says beside what was predicted, and what to change.

    as_markdown: its parts as a table of Markdown, its sentences as lists.
    """
    further, indent = ("  ", "- ") if as_markdown else ("    ", "  ")
    log, predicted = answer.log, answer.predicted
    where = "a CPU" if log.device == "cpu" else answer.gpu.id if answer.gpu else "an unknown GPU"
    started = f"{log.engine} {log.version or '(version not printed)'}: {shown_name(log.model) or 'a model'} on {where}"
    print_sentence(started, indent="", further="  ")
    settings = [
        _option(name, value) for name, value in named_settings(log.settings).items() if name not in _SAID_ELSEWHERE
    ]
    if settings:
        print_sentence(in_words_of(log.engine, f"settings read: {', '.join(settings)}"), indent=indent, further=further)
    if log.stopped:
        print_sentence(f"stopped: {log.stopped}", indent=indent, further=further)
    rows = [
        (part.name, _gib(part.logged_bytes), _gib(part.predicted_bytes), _signed(difference_gib(part)))
        for part in answer.parts
        if (part.logged_bytes, part.predicted_bytes) != (None, None)
    ]
    if rows:
        say()
        scope = "GiB of the host" if log.device == "cpu" else "GiB of one GPU"
        head = (scope, "log", "kvplan", "difference")
        print_markdown(head, rows) if as_markdown else print_table(None, head, rows)
    counts = [
        ("KV cache tokens", _count(log.kv_cache_tokens), _count(predicted.kv_cache_tokens) + _between(predicted)),
        ("blocks", _count(log.num_blocks), _count(predicted.num_blocks)),
        ("concurrency", _times(log.max_concurrency), _times(predicted.max_concurrency)),
    ]
    known = [each for each in counts if each[1:] != ("-", "-")]
    say("\n" if known else "", end="")
    for name, logged, mine in known:
        say(f"- {name}: log {logged}, kvplan {mine}" if as_markdown else f"  {name:16s} log {logged}, kvplan {mine}")
    if answer.changes:
        say("\nwhat to change:\n" if as_markdown else "\nwhat to change:")
    for each in answer.changes:
        gain = f"  (+{each.gained_tokens:,} tokens)" if each.gained_tokens is not None else ""
        print_sentence(each.sentence + gain, indent=indent, further=further)


def _option(name: str, value: Any) -> str:
    option = KNOBS[name].option
    if isinstance(value, bool):
        return option if value else option.replace("--", "--no-", 1)
    return f"{option} {value}"


def _gib(number: int | None) -> str:
    return "-" if number is None else format_gib(number)


def _signed(number: float | None) -> str:
    return "-" if number is None else f"{number:+.2f}"


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _between(predicted: Counts) -> str:
    """`` (474,112 to 477,888)``, the interval of 9 of 10 start-ups."""
    low, high = predicted.tokens_range or (0, 0)
    return f" ({low:,} to {high:,})" if high else ""


def _times(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}x"

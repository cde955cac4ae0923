"""Settings in the commands that people paste beside a log: shell lines, containers, lists in YAML or JSON.

Options are read only where a command stands, or lines that hold nothing but options. Engines name options in what they
advise ("increase --gpu-memory-utilization to 0.9362"), and those are nobody's settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from kvplan.errors import UsageError
from kvplan.pasted.options import FLAGS, NO, SETTING_OF, setting_value

_HEAD = re.compile(
    r"\bvllm serve\b|\bvllm\.entrypoints\b|\bsglang serve\b|\bsglang\.launch_server\b|\b(?:docker|podman|nerdctl) run\b"
    r"|^\W{0,8}(?:command|args|cmd|entrypoint|ExecStart|\w{0,40}(?:ARGS|CMD|OPTS|FLAGS|COMMAND))\W{0,3}[:=]"
)
"""What begins a command, or the list of a container's arguments."""
_ONLY_OPTIONS = re.compile(r"""^[\s>$|▎"'`\[(,\-]{0,40}?(?:--[a-z]|-(?:tp|pp|dp|dcp|ep)\b)""")
_PROSE = re.compile(r"(?:[a-z]{2,20}[,.:;]? ){2}[a-z]{2,20}|\b(?:fix|help|work|fail)(?:e?s|ed)?\b")
"""Words in a row: a sentence about an option is no command."""
_MENTION = re.compile(
    r"\b(?:[Ww]ith|[Uu]sing|[Aa]rgs?|[Ff]lags?|[Oo]ptions?|[Ss]ettings?|[Rr]un(?:ning)?|[Ll]aunched)[:\s]{1,3}[`'\"]?"
    r"((?:--?[a-z][\w.-]{0,60}(?:[= ][\w./:-]{1,120})?[`'\"]?[ ,]{0,2}(?:and )?[`'\"]?){1,30})"
)
"""Options in a sentence that says what was run."""
_SHORT_SIZE = re.compile(r"\b(TP|PP|DP) ?= ?(\d{1,4})\b")
"""``TP=2``, as reports have it."""
_ENGINE_LINE = re.compile(
    r"\[\w{1,60}\.py:\d{1,6}\]|\b(?:INFO|WARNING|ERROR|DEBUG) [\d-]{5,10} |\b\w{1,60}(?:Error|Exception): "
    r"|[Tt]o serve at least one|Replace gpu_memory_utilization|^\W{0,6}(?:proceed|Based on|Raise|Try)\b"
)
_LIST_VALUE = re.compile(r"""^\s*(?:-\s+)?["']?[\w./:{}"'-]{1,300}["']?,?\s*$""")
_OPTION = re.compile(
    r"""(?<![\w/.-])--?([A-Za-z][\w.-]{0,60})"""
    r"""(?:["'`]?(?:=|[\s,\\]{1,60}(?:-\s{1,4})?)["'`]?([^\s"'`,\]\\=-][^\s"'`,\]\\]{0,300}))?"""
)
_SERVED = re.compile(r"\b(?:vllm|sglang) serve[\s\\]{1,40}['\"]?([^\s'\"-][^\s'\"]{0,300})")
_CONFIG_LINE = re.compile(
    r"""^\s{0,20}(?:-\s)?(?:export |ENV |-e )?["']?([A-Za-z][\w-]{3,50})["']?\s?[:=]\s?"""
    r"""["']?([\w./-]{1,200})["']?\s*(?:#.*)?$"""
)
"""``tensor-parallel-size: 2`` in a file for --config, ``MAX_MODEL_LEN=32768`` in a container's environment."""
_MAYBE = re.compile(
    r"--[a-z]|(?<![\w-])-(?:tp|pp|dp|dcp|ep)\b|\bserve\b|(?i:utilization|model|max[-_]num|parallel|kv[-_]cache|eager"
    r"|dtype|[tpd]p ?=|quantiz|command|args|cmd|flags|opts|entrypoint|exec|fraction|prefix)"
)
_COMMENT = re.compile(r"(?<=\S)\s{1,40}#\s.*$|^\s{0,40}#\s*-.*$")
"""What follows a setting, or a setting that is commented out."""
_LONGEST_LINE: Final = 4000


class Statement(NamedTuple):
    """A setting as one place of the text has it; ``model`` beside the fields of ServingSettings."""

    name: str
    value: Any


def pasted_settings(text: str) -> Iterator[Statement]:
    """Yield what pasted commands say, in their order; values that are out of range are passed over."""
    lines = _worth_reading(text)
    for command in _commands(lines):
        served = _SERVED.search(command)
        if served:
            yield Statement("model", served.group(1))
        for match in _OPTION.finditer(command):
            yield from _statement(match.group(1), match.group(2))
    for line in filter(None, lines):
        if _ENGINE_LINE.search(line):
            continue
        mention = None if _is_of_a_command(line) else _MENTION.search(line)
        for match in _OPTION.finditer(mention.group(1)) if mention else ():
            yield from _statement(match.group(1), match.group(2))
        for match in _SHORT_SIZE.finditer(line):
            yield from _statement(match.group(1), match.group(2))
        stated = _CONFIG_LINE.match(line)
        if stated:
            yield from _statement(stated.group(1), stated.group(2), needs_long_name=True)


def _worth_reading(text: str) -> list[str]:
    """The lines that may say something, and the one after each, which may be a value; the others are empty."""
    lines: list[str] = []
    is_near = False
    for line in text.splitlines():
        says = _MAYBE.search(line, 0, _LONGEST_LINE) is not None
        lines.append(_COMMENT.sub("", line[:_LONGEST_LINE]) if says or is_near else "")
        is_near = says
    return lines


def _is_of_a_command(line: str) -> bool:
    if not line or _ENGINE_LINE.search(line):
        return False
    return bool(_HEAD.search(line) or (_ONLY_OPTIONS.match(line) and not _PROSE.search(line)))


def _commands(lines: list[str]) -> Iterator[str]:
    """Yield each run of lines that make one command."""
    command: list[str] = []
    for line in lines:
        continues = bool(command) and (_LIST_VALUE.match(line) or command[-1].rstrip().endswith("\\"))
        if _is_of_a_command(line) or (continues and not _ENGINE_LINE.search(line)):
            command.append(line)
        elif command:
            yield "\n".join(command)
            command = []
    if command:
        yield "\n".join(command)


def _statement(option: str, value: str | None, *, needs_long_name: bool = False) -> Iterator[Statement]:
    """Yield what an option says; of names that stand alone only those of several words are meant."""
    folded = option.lower().replace("_", "-") if "." not in option else option
    is_long = folded.count("-") > 1 or folded == "enforce-eager" or (folded == "model" and "/" in (value or ""))
    if needs_long_name and not is_long:
        return
    if folded in FLAGS:
        flag, is_on = FLAGS[folded]
        yield Statement(flag, is_on is not ((value or "").lower() in NO))
    name = SETTING_OF.get(folded)
    if name is None or value is None:
        return
    if name == "model":
        yield Statement(name, value)
        return
    with suppress(ValueError, UsageError):
        read = setting_value(name, value)
        if read is not None:
            yield Statement(name, read)

"""Sentences that name settings as Python does, in the words of a command line."""

from __future__ import annotations

import re
from collections.abc import Mapping

_VALUE = r"(?P<value>=(?:'[^']*'|[-.\w]*\w))"


def in_options(text: str, option_names: Mapping[str, str]) -> str:
    """``text`` with ``--tensor-parallel-size 1`` for ``tensor_parallel_size=1``, and so on for all ``option_names``.

    A name without an underscore is a word like any other where no value follows it.
    """
    if not option_names:
        return text
    names = sorted(option_names, key=len, reverse=True)
    joined, words = "|".join(name for name in names if "_" in name), "|".join(names)
    pattern = rf"(?<![-\w])(?:(?P<set>{words}){_VALUE}|(?P<quoted>{words})(?= ')|(?P<name>{joined}))(?!\w)"
    return re.sub(pattern, lambda match: _option(match, option_names), text)


def _option(match: re.Match[str], option_names: Mapping[str, str]) -> str:
    if match["set"] is None:
        return option_names[match["quoted"] or match["name"]]
    option, value = option_names[match["set"]], match["value"][1:].strip("'")
    if value == "False":
        return "--no-" + option.removeprefix("--")
    return option if value == "True" else f"{option} {value}"

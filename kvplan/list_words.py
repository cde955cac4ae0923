"""List options on a command line: ``--gpu a b`` says what ``--gpu a --gpu b`` and ``--gpu a,b`` say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from kvplan.errors import UsageError
from kvplan.settings import FLAG_ON, FLAG_WORDS


def with_flag_words(words: Sequence[str], flags: Collection[str]) -> list[str]:
    """``--enable-expert-parallel`` says what ``--enable-expert-parallel true`` says. flags: options of yes and no."""
    found: list[str] = []
    for position, word in enumerate(words):
        if word == "--":
            return [*found, *words[position:]]
        found.append(word)
        following = words[position + 1].split(",") if position + 1 < len(words) else []
        if word in flags and not (following and FLAG_WORDS.keys() >= set(following)):
            found.append(FLAG_ON)
    return found


def with_named_model(words: Sequence[str], *, at_end: bool = False) -> list[str]:
    """``plan --gpu l4 --model gpt2`` says what ``plan gpt2 --gpu l4`` says. words: with the command's name first.

    at_end: the model is the last argument, not the first. UsageError where ``--model`` has no value. What follows
    ``--`` is left alone.
    """
    ends = words.index("--") if "--" in words else len(words)
    kept: list[str] = []
    models: list[str] = []
    own = iter(words[:ends])
    for word in own:
        name, equals, value = word.partition("=")
        if name != "--model":
            kept.append(word)
            continue
        value = value if equals else next(own, "")
        if not value or (value.startswith("-") and not equals):
            raise UsageError("--model has no value.", hint="--model gpt2")
        models.append(value)
    first = next((place for place, word in enumerate(kept) if not word.startswith("-")), 0) + 1
    first = len(kept) if at_end else first
    return [*kept[:first], *models, *kept[first:], *words[ends:]]


def repeat_options(words: Sequence[str], readers: Mapping[str, Callable[[str], object]]) -> list[str]:
    """Words after a list option's value that its reader takes, each with the option repeated before it.

    ``readers``: by option, what reads one value; it raises UsageError or answers False for anything else, such as the
    model in ``--gpu l4 gpt2``. What follows ``--`` is left alone.
    """
    found: list[str] = []
    option: str | None = None
    has_value = False
    for position, word in enumerate(words):
        if word == "--":
            return [*found, *words[position:]]
        if word.startswith("-"):
            name, equals, _ = word.partition("=")
            option, has_value = (name if name in readers else None), bool(equals)
        elif option is not None and has_value:
            if is_value(word, readers[option]):
                found.append(option)
            else:
                option = None
        else:
            has_value = True
        found.append(word)
    return found


def is_value(text: str, reader: Callable[[str], object]) -> bool:
    """Whether each part of ``text`` between commas is read; the name of a file that exists never is."""
    if Path(text).exists():
        return False
    try:
        return all(bool(reader(part.strip())) for part in text.split(",") if part.strip())
    except UsageError:
        return False

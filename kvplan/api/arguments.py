"""Arguments of the functions for Python: their types and names are checked, and errors name them instead of options."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kvplan.catalog.speculation.config import with_speculative_config
from kvplan.errors import KvplanError, UsageError
from kvplan.setting_values import read_settings
from kvplan.settings import KNOBS, ServingSettings, option_of

if TYPE_CHECKING:
    import pandas


Function = TypeVar("Function", bound=Callable[..., Any])
Failure = TypeVar("Failure", bound=KvplanError)

_KINDS: Final[Mapping[str, tuple[type | tuple[type, ...], str]]] = {
    "str": (str, "text"),
    "Path": (os.PathLike, "a path"),
    "int": (Real, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool, "True or False"),
    "Mapping": (Mapping, "a dict"),
    "Iterable": (Iterable, "a list"),
    "Callable": (Callable, "a function"),  # type: ignore[dict-item]
}
"""Annotations of arguments: what a value of each is, and its name for people."""
_OTHER_OPTIONS: Final = {"--from": "start", "--to": "end", "--device-memory": "device_memory"}
_OPTION: Final = re.compile(r"--[a-z][\w-]*")
_VALUE: Final = re.compile(r"[ =](\d[\w.,%@-]*|[a-z]\w*[:@=][\w.,:@=-]+)(?<![.,-])")
"""What follows an option as its value: a number or a text that begins with one, ``ttft:500``, ``vllm@0.19``."""
_COMMAND: Final = re.compile(r"\b(?:vllm serve|kvplan [a-z]+) ")
"""Where a command begins, whose options stay options."""


def checks_arguments(settings: Sequence[str] = ()) -> Callable[[Function], Function]:
    """Check types and names of what a function is given, and let its errors name arguments instead of options.

    ``settings``: names that it takes beside its own arguments.
    """

    def decorate(function: Function) -> Function:
        own = inspect.signature(function).parameters
        names = [name for name, each in own.items() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        shorter = ("device_memory",) if "device_memory_bytes" in settings else ()

        @functools.wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            try:
                for name in given:
                    if name not in (*names, *settings, *shorter):
                        raise _unknown(function.__name__, name, names, settings)
                for name, value in (*zip(names, args, strict=False), *given.items()):
                    if name in names and value is not None:
                        _check_type(name, value, str(own[name].annotation))
                return function(*args, **given)
            except KvplanError as error:
                raise in_arguments_of(function, error)  # noqa: B904 - it is the same one

        return checked  # type: ignore[return-value]

    return decorate


def in_arguments_of(function: Callable[..., Any], error: Failure) -> Failure:
    """Return ``error`` with the arguments of ``function`` in the place of a command's options."""
    # The argument that each option stands for.
    knobs = {option: each.name for each in KNOBS.values() for option in (each.option, *each.aliases)}
    words = knobs | _OTHER_OPTIONS | {option_of(name): name for name in inspect.signature(function).parameters}
    error.message, error.hint = _reworded(error.message, words), _reworded(error.hint or "", words) or None
    error.args = (error.message,)
    if error.hint and hasattr(error, "add_note"):  # from Python 3.11 on: shown below the message
        error.add_note(f"hint: {error.hint}")
    return error


def _reworded(sentence: str, words: Mapping[str, str]) -> str:
    """``use --ctx 1024 or less`` -> ``use ctx=1024 or less``; options that are no arguments stay."""
    parts, place, command = [], 0, _COMMAND.search(sentence)
    for found in _OPTION.finditer(sentence, 0, command.start() if command else len(sentence)):
        name = words.get(found[0])
        if name is None:
            continue
        parts.append(sentence[place : found.start()] + name)
        value, place = _VALUE.match(sentence, found.end()), found.end()
        if value is not None:
            place = value.end()
            is_number = re.fullmatch(r"\d+(\.\d+)?", value[1])
            parts.append(f"={value[1]}" if is_number else f'="{value[1]}"')
    return "".join((*parts, sentence[place:]))


def _unknown(function: str, name: str, own: Sequence[str], settings: Sequence[str]) -> UsageError:
    """The error for an argument that ``function`` does not have. The hint names those that are meant, if any are."""
    known = (*own, *settings)
    by_alias = [each.name for each in KNOBS.values() if option_of(name) in (each.option, *each.aliases)]
    longer = [each for each in known if name in each.split("_") or each.startswith(name)]
    alike = list(dict.fromkeys([*(each for each in by_alias if each in known), *longer]))
    alike = alike[:_MOST_NAMED] or get_close_matches(name, known, n=_MOST_NAMED, cutoff=0.7)
    others = f", and settings by vLLM's names, such as {settings[0]}" if settings else ""
    hint = f"did you mean {' or '.join(alike)}?" if alike else f"it takes {', '.join(own)}{others}"
    return UsageError(f"kvplan.{function} has no argument '{name}'.", hint=hint)


_MOST_NAMED: Final = 3


def _check_type(name: str, value: Any, annotation: str) -> None:
    """UsageError where ``value`` is of none of the types that its annotation names."""
    kinds = [_KINDS[each] for part in annotation.split(" | ") if (each := part.split("[")[0].strip()) in _KINDS]
    wanted = tuple(kind for kind, _ in kinds)
    is_other = any(isinstance(value, kind) and word not in annotation for word, kind in _NARROWER.items())
    is_other |= isinstance(value, float) and "float" not in annotation and value % 1 != 0
    if not kinds or (isinstance(value, wanted) and not is_other):
        return
    named = list(dict.fromkeys(word for _, word in kinds))
    words = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} or {named[-1]}"
    example = _EXAMPLES.get(name)
    if example is None and ("int" in annotation or "float" in annotation):
        example = "4"
    hint = None if example is None else f"for example {name}={example}"
    raise UsageError(f"{name} must be {words}, got {value!r}.", hint=hint)


_NARROWER: Final = {"bool": bool, "Mapping": Mapping}
"""What is a number or can be gone through, but stands for neither."""
_EXAMPLES: Final = {
    "model": '"llama-3.1-8b"',
    "log": 'pathlib.Path("start.log"), or the text of a log',
    "trace": '"trace.jsonl"',
    "slo": '"ttft:500 tpot:50"',
    "gpu": '"h100", or ["l4", "8xh200"]',
    "price": '{"h100": 2.5}',
    "api_price": '{"in": 0.6, "out": 2.4}',
    "assume": '{"head_dim": 128}',
    "speculative_config": '{"method": "mtp", "num_speculative_tokens": 1}',
    "quantization": '"fp8"',
    "kv_cache_dtype": '"fp8"',
    "engine": '"vllm@0.33"',
    "ctx": '"16k"',
    "ctx_avg": '"8k"',
    "ctx_max": '"32k"',
}


def named_settings(
    given: Mapping[str, Any], speculative_config: Mapping[str, Any] | None = None, **more: str
) -> ServingSettings:
    """Read settings by vLLM's names; ``device_memory`` is the option's name for ``device_memory_bytes``."""
    named = {"device_memory_bytes" if name == "device_memory" else name: value for name, value in given.items()}
    settings = read_settings({name: _written(name, value) for name, value in (named | more).items()})
    return with_speculative_config(settings, json_text(speculative_config))


def _written(name: str, value: Any) -> Any:
    """Return a value as the command line has it: bytes and tokens as text."""
    return str(value) if value is not None and KNOBS[name].kind in ("bytes", "tokens") else value


def json_text(values: Mapping[str, Any] | None) -> str | None:
    """Return an object as the option with JSON takes it."""
    return None if values is None else json.dumps(dict(values))


def named_numbers(values: Mapping[str, float]) -> str:
    """``{"in": 0.6, "out": 2.4}`` -> ``in=0.6,out=2.4``."""
    return ",".join(f"{name}={value}" for name, value in values.items())


def text(value: object) -> str | None:
    """Return one value as an option takes it."""
    return None if value is None else str(value)


def texts(values: object) -> Sequence[str]:
    """Return one or several values as an option that takes several does."""
    if values is None:
        return ()
    if isinstance(values, Iterable) and not isinstance(values, str):
        return [str(value) for value in values]
    return [str(values)]


def frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return rows as a DataFrame. UsageError without pandas."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise UsageError("to_frame() needs pandas, which is not installed.", hint="pip install pandas") from None

    return pandas.DataFrame(rows)

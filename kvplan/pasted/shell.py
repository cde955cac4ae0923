"""Words of a pasted shell line: what starts vLLM in it, and what stands before that.

A line may begin with variables (``VLLM_USE_V1=1 vllm serve``), with a container (``docker run ... vllm/vllm-openai
--model ID``), or with anything else that starts a command (``uv run``, ``nohup``). It ends at a pipe or a redirection.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from kvplan.errors import UsageError

_OTHERS: Final = re.compile(r"sglang(?:\.[\w.]+)?|llama-server|trtllm-serve|text-generation-launcher|ollama|lmdeploy")
_EXAMPLE: Final = "for example vllm serve Qwen/Qwen3-8B --max-model-len 32768"
_VARIABLE = re.compile(r"([A-Za-z_]\w{0,80})=(.*)", re.DOTALL)
_SERVER_MODULE: Final = re.compile(r"vllm\.entrypoints\.(?:openai\.)?api_server")
_RUN_IMAGE: Final = ("docker", "podman", "nerdctl")
_BARE_RUN_OPTIONS: Final = (
    *("--detach", "--init", "--interactive", "--no-healthcheck", "--oom-kill-disable", "--privileged"),
    *("--publish-all", "--read-only", "--replace", "--rm", "--tty"),
)
"""Options of ``docker run`` that take no value (docs.docker.com, "docker container run")."""
_BARE_SHORT: Final = re.compile(r"-[ditPq]{1,5}")
_TAG: Final = re.compile(r"vllm-openai[\w.-]{0,40}:v?(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?(?:\.post\d{1,3}|rc\d{1,3})?)")
_END: Final = re.compile(r"(?:\d?>{1,2}|<|&>|\|{1,2}|&{1,2}|;).*")
"""What ends a command, or sends its output elsewhere."""


@dataclass(frozen=True, slots=True)
class ServeLine:
    """What vLLM's server is started with. ``version``: of a container's image, None where it is not told."""

    arguments: tuple[str, ...]
    variables: dict[str, str]
    version: str | None


def shell_words(text: str) -> list[str]:
    """Split a line as a shell does: quotes, continuations, comments. UsageError where a quote is not closed."""
    joined = re.sub(r"\\\r?\n", " ", text.strip()).removeprefix("$ ")
    try:
        return shlex.split(joined, comments=True)
    except ValueError as error:
        raise UsageError("The pasted command has a quote that is not closed.", hint=_EXAMPLE) from error


def is_serve_line(words: Sequence[str]) -> bool:
    """Whether ``words`` start vLLM's server, or try to."""
    begins = words[:3] if len(words) > 1 else ()
    return _start(words) is not None or any(_OTHERS.fullmatch(word) or word in _RUN_IMAGE for word in begins)


def serve_line(words: Sequence[str]) -> ServeLine:
    """Find vLLM's server in ``words``. UsageError where nothing, or another engine, is started."""
    start = _start(words)
    variables = dict(_variables(words[:start]))
    if start is not None and not any(word in _RUN_IMAGE for word in words[:start]):
        return ServeLine(_up_to_end(words[start:]), variables, None)
    run = next((place for place, word in enumerate(words) if word in _RUN_IMAGE), None)
    if run is None or "run" not in words[run:]:
        hint = "kvplan reads vLLM's commands alone" if any(map(_OTHERS.fullmatch, words)) else _EXAMPLE
        raise UsageError("The pasted command does not start vLLM's server.", hint=hint)
    return _in_container(words[run + words[run:].index("run") + 1 :], variables)


def _start(words: Sequence[str]) -> int | None:
    """The place behind ``vllm serve`` or the server's module; None where there is neither."""
    for place, word in enumerate(words):
        following = words[place + 1] if place + 1 < len(words) else ""
        if PurePosixPath(word).name == "vllm" and following == "serve":
            return place + 2
        if _SERVER_MODULE.fullmatch(word) or (word == "serve" and place == 0):
            return place + 1
    return None


def _variables(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        match = _VARIABLE.fullmatch(word)
        if match:
            yield match.group(1), match.group(2)


def _in_container(words: Sequence[str], variables: dict[str, str]) -> ServeLine:
    """Read what follows ``docker run``: its options, the image, and what the image's entry point is given."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        option = words[place]
        takes_next = "=" not in option and option not in _BARE_RUN_OPTIONS and not _BARE_SHORT.fullmatch(option)
        if option in ("-e", "--env") and place + 1 < len(words):
            variables.update(_variables([words[place + 1]]))
        place += 2 if takes_next else 1
    if place >= len(words):
        raise UsageError("The pasted command names no image.", hint="for example vllm/vllm-openai:v0.32.0 --model ID")
    image, given = words[place], list(words[place + 1 :])
    for number, word in enumerate(given):  # bash -c "vllm serve ..."
        if " " in word and is_serve_line(shell_words(word)):
            given[number:] = shell_words(word)
            break
    inner = _start(given)
    tag = _TAG.search(image)
    inside = dict(_variables(given[:inner])) if inner is not None else {}
    arguments = _up_to_end(given if inner is None else given[inner:])
    return ServeLine(arguments, variables | inside, None if tag is None else tag.group(1))


def _up_to_end(words: Sequence[str]) -> tuple[str, ...]:
    end = next((place for place, word in enumerate(words) if _END.fullmatch(word)), len(words))
    return tuple(words[:end])

"""The one entrance of the page: a question as JSON text, its answer as JSON text.

    {"ask": "estimate", "arguments": {"model": "llama-3.1-8b", "gpu": "h100", "ctx": "16k"}}

Arguments are those of the function of this name in ``kvplan.api``. An answer has ``document``, the text that the
command prints with ``--json``, and ``view``, the same figures as the page shows them. A mistake is ``error``, ``hint``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, Final

from kvplan import __version__, api
from kvplan.commands.printing.estimates import print_estimates
from kvplan.commands.printing.render import OutputFormat, captured
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.document import estimate_document
from kvplan.estimate.known_models import known_names
from kvplan.settings import KNOBS
from kvplan.web.changes import changed_deployments
from kvplan.web.command_lines import kvplan_command, vllm_command
from kvplan.web.estimate_view import estimate_view
from kvplan.web.other_views import log_view, plan_view, rows_view, share_of_passes

FILES: Final[dict[str, str]] = {}
"""Models that lie in files of this browser, by the names that people see: where the planner finds them."""

Answer = dict[str, Any]


def answer(text: str, show: Callable[[float], None] | None = None) -> str:
    """Return the answer to the question ``text``. show: called with the share of a plan that is done."""
    try:
        found = _answered(json.loads(text), show)
    except KvplanError as error:
        found = {"error": error.message, "hint": error.hint}
    return json.dumps(found | {"version": __version__}, ensure_ascii=False)


def add_file(name: str, path: str) -> None:
    """Let a question name the file or folder ``path`` as the model ``name``."""
    FILES[name] = path


def _answered(question: Any, show: Callable[[float], None] | None) -> dict[str, Any]:
    asked = question.get("ask") if isinstance(question, dict) else None
    if asked not in QUESTIONS:
        raise UsageError(f"There is no question '{asked}'.", hint=f"one of {', '.join(QUESTIONS)}")
    arguments = dict(question.get("arguments") or {})
    return plan(arguments, show) if asked == "plan" else QUESTIONS[asked](arguments)


def printed(document: Mapping[str, Any]) -> str:
    """Return a document as the command prints it."""
    return json.dumps(document, indent=2, ensure_ascii=False)


def estimate(arguments: dict[str, Any]) -> Answer:
    """The whole answer: with times, which are played, and Markdown to copy."""
    return _estimate(arguments, is_whole=True)


def memory(arguments: dict[str, Any]) -> Answer:
    """An estimate as fast as a slider moves: without times, and so without the command's document."""
    return _estimate(arguments, is_whole=False)


def _estimate(arguments: dict[str, Any], *, is_whole: bool) -> Answer:
    average = arguments.pop("average", None)
    name = _model(arguments)
    found = _called(api.estimate, name, arguments)
    document = found.to_dict() if is_whole else estimate_document(_without_times(found).answer)
    shorter = None if average is None else _called(api.estimate, name, arguments | {"ctx": average})
    is_vllm = str(arguments.get("engine", "vllm")).startswith("vllm")
    served = name if name in FILES else found.model
    more: Answer = {}
    if is_whole:
        more["document"] = printed(document)
        more["markdown"] = captured(lambda: print_estimates([found.answer], OutputFormat.md))
    return more | {
        "command": kvplan_command("estimate", name, arguments),
        "launch": vllm_command(found.answer, served, arguments) if is_vllm else None,
        "view": estimate_view(found, served, document, shorter),
    }


def _without_times(found: api.Estimate) -> api.Estimate:
    return replace(found, answer=replace(found.answer, speeds=(None,) * len(found.deployments)))


def changes(arguments: dict[str, Any]) -> Answer:
    """What else the deployment could be, and how many sequences it would hold then."""
    arguments.pop("average", None)
    name = _model(arguments)
    return {"changes": changed_deployments(lambda asked: _called(api.estimate, name, asked), arguments)}


def plan(arguments: dict[str, Any], show: Callable[[float], None] | None = None) -> Answer:
    """The deployments that serve a load, or what comes nearest. show: called with the share that is done."""
    name = _model(arguments)
    progress = None if show is None else share_of_passes(show)
    found = _called(partial(api.plan, progress=progress), name, arguments)
    document = found.to_dict()
    return {
        "document": printed(document),
        "command": kvplan_command("plan", name, arguments),
        "view": plan_view(found, document),
    }


def explain(arguments: dict[str, Any]) -> Answer:
    """A start-up log, whose text is ``log``."""
    log = str(arguments.pop("log", ""))
    if not log.strip():
        raise UsageError("There is no log.", hint="paste what vLLM or SGLang printed while it started")
    found = _called(api.explain, log + "\n", arguments)
    document = found.to_dict()
    return {
        "document": printed(document),
        "command": kvplan_command("explain", "LOG", arguments),
        "view": log_view(found, document),
    }


def rows(arguments: dict[str, Any]) -> Answer:
    """The ``text`` of a results.csv: measured figures beside predicted ones."""
    return {"view": rows_view(str(arguments.get("text", "")))}


def known(arguments: dict[str, Any]) -> Answer:
    """Names for the controls of the page, and the release that counts where none is chosen."""
    return known_names()


QUESTIONS: Final[dict[str, Callable[[dict[str, Any]], Answer]]] = {
    each.__name__: each for each in (estimate, memory, changes, plan, explain, rows, known)
}


def _model(arguments: dict[str, Any]) -> str:
    name = str(arguments.pop("model", "")).strip()
    if not name:
        raise UsageError("There is no model.", hint="choose one by name, or drop a config.json")
    return name


def _called(function: Callable[..., Any], first: str, arguments: Mapping[str, Any]) -> Any:
    """Call a function of the Python interface. UsageError for an argument that it does not take."""
    taken = set(list(signature(function).parameters)[1:]) | set(KNOBS) | {"device_memory"}
    for name in arguments:
        if name not in taken or name in ("settings", "progress"):
            raise UsageError(f"There is no '{name}' here.", hint="docs/python.md has the arguments of each question")
    return function(FILES.get(first, first), **arguments)

"""The one entrance of the page: a question as JSON text, its answer as JSON text.

    {"ask": "estimate", "arguments": {"model": "llama-3.1-8b", "gpu": "h100", "ctx": "16k"}}

Arguments are those of the function of this name in ``kvplan.api``. An answer has ``document``, the text that the
command prints with ``--json``, and ``view``, the same figures as the page shows them. A mistake is ``error``, ``hint``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from kvplan import __version__
from kvplan.errors import KvplanError, UsageError
from kvplan.web.questions import FILES, QUESTIONS, plan


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

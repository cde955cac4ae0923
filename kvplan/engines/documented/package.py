"""An engine that is a Python package in an environment of its own."""

from __future__ import annotations

import subprocess
from typing import Final

from kvplan.errors import KvplanError

_ANSWER_SECONDS: Final = 60.0
_QUESTION: Final = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


def package_version(python: str, package: str) -> str:
    """The version that ``python`` has of ``package``, without importing it. KvplanError where it has none."""
    try:
        answer = subprocess.run(
            [python, "-c", _QUESTION, package], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or "it does not answer"
        raise KvplanError(f"'{python}' cannot be run ({reason}).", hint="--engine-python PATH/bin/python") from error
    if answer.returncode:
        hint = "--engine-python names the interpreter of the environment that has it"
        raise KvplanError(f"{python} has no package {package}.", hint=hint)
    return answer.stdout.strip()

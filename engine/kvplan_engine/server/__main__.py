"""``python -m kvplan_engine.server``: a server with the options that stdin says, as JSON (see ServerOptions).

Exit codes: 0 after a signal, 1 when the server cannot start or its engine has died, 2 for options that are wrong, for
themselves or for the model.
"""

from __future__ import annotations

import logging
import sys

from kvplan_engine.errors import EngineError, SettingsError


def main() -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s server: %(message)s")
    try:
        from kvplan_engine.server.options import in_options, read_options
        from kvplan_engine.server.runner import run
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("kvplan"):
            raise
        return _complain(f"the package '{missing.name}' is missing.", "pip install 'kvplan[serve]'", 1)
    try:
        options = read_options(sys.stdin.buffer.read())
    except EngineError as problem:
        return _complain(problem.message, problem.hint, 2)
    try:
        return run(options)
    except EngineError as problem:
        message, hint = (in_options(text or "", options.option_names) for text in (problem.message, problem.hint))
        return _complain(message, hint, 2 if isinstance(problem, SettingsError) else 1)


def _complain(message: str, hint: str | None, exit_code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())

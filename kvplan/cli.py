"""The ``kvplan`` command. Only the command that is asked for is imported, so that help and estimates answer at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import typer

from kvplan import __version__
from kvplan.errors import KvplanError

INTERRUPTED = 130

COMMANDS: dict[str, str] = {
    "estimate": "Size a model: weights, KV cache, and how many sequences fit on which GPU.",
    "plan": "Find the GPUs and settings that serve so many users at such a context.",
    "sweep": "Measure throughput, block occupancy and memory limits with kvplan's own engine.",
    "explain": "Read an engine's start-up log: where each GiB went, and what to change.",
    "bench": "Measure what paging buys beside what it replaces.",
    "calibrate": "Fit the predictions to measured rows.",
    "report": "Draw tables, plots and a page from a sweep's directory.",
    "serve": "Serve a model over HTTP with kvplan's own engine.",
    "profile": "Show where a run's memory goes.",
    "top": "Watch a running server.",
    "models": "List the models that are known by name.",
    "gpus": "List the GPUs that are known by name.",
}
"""Every command is a function of its own name in kvplan/commands/<name>.py; those without a module are not listed."""

_CLICK_ERROR: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""What typer raises for a wrong command line. Typer brings its own click, so the class is found through typer."""


def available_commands() -> list[str]:
    """The commands whose module exists."""
    folder = Path(__file__).parent / "commands"
    return [name for name in COMMANDS if (folder / f"{name}.py").is_file() or (folder / name).is_dir()]


def _print_version(requested: bool) -> None:
    if requested:
        print(f"kvplan {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """How many sequences of which length a model can serve on a device, with which settings, and how fast."""


def _unloaded() -> None:
    """Stands in for a command that is listed but was not asked for."""


def build_app(wanted: str | None) -> typer.Typer:
    """The app with the function of ``wanted`` loaded and all other commands present by name and help only."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in available_commands():
        loaded = import_module(f"kvplan.commands.{name}") if name == wanted else None
        group = getattr(loaded, "app", None)
        if isinstance(group, typer.Typer):
            app.add_typer(group, name=name, help=COMMANDS[name])
            continue
        function: Callable[..., None] = getattr(loaded, name) if loaded else _unloaded
        app.command(name, help=None if loaded else COMMANDS[name])(function)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 ok, 1 infeasible or failed, 2 usage, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    wanted = next((word for word in words if not word.startswith("-")), None)
    try:
        code = build_app(wanted)(args=words, prog_name="kvplan", standalone_mode=False)
        sys.stdout.flush()
    except KvplanError as error:
        return _complain(error.message, error.hint, error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as stop:
        return _exit_code(stop)
    except _CLICK_ERROR as error:
        return _complain(error.format_message(), _help_hint(wanted), 2)  # type: ignore[attr-defined]
    return code if isinstance(code, int) else 0


def _exit_code(stop: SystemExit) -> int:
    """Typer turns a closed pipe into exit code 1; a reader that has seen enough is no failure."""
    if isinstance(stop.__context__, BrokenPipeError):
        return _reader_left()
    return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


def _reader_left() -> int:
    """The program that read our output has closed it: say nothing, neither now nor when Python flushes at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _help_hint(wanted: str | None) -> str:
    return f"kvplan {wanted} --help lists the options" if wanted in COMMANDS else "kvplan --help lists the commands"


def _complain(message: str, hint: str | None, exit_code: int) -> int:
    sentence = message.strip() or "The command line is not complete."
    print(f"error: {sentence}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return exit_code

"""The ``kvplan`` command. Only the command that is asked for is imported, so that help and estimates answer at once."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from importlib import import_module
from typing import Any, Final, NamedTuple

import typer

from kvplan import __version__
from kvplan.commands.options.extras import need_extra
from kvplan.completion import VARIABLE, completed_value
from kvplan.errors import KvplanError
from kvplan.foreign_text import guarded_output, printable
from kvplan.help_sections import SectionedCommand, SectionedGroup
from kvplan.list_words import repeat_options, with_flag_words, with_named_model
from kvplan.terminal import fitted

INTERRUPTED = 130


class CommandListing(NamedTuple):
    """How a command stands in the help of ``kvplan``: the section it is listed in, what it does, and what it needs.

    ``extra``: the one of pyproject.toml whose packages it cannot do without, empty where every install has them.
    """

    panel: str
    summary: str
    extra: str = ""


COMMANDS: dict[str, CommandListing] = {
    "estimate": CommandListing("Plan", "Size a model: weights, KV cache, and how many sequences fit on which GPU."),
    "plan": CommandListing("Plan", "Find the GPUs and settings for a given load."),
    "explain": CommandListing("Plan", "Read an engine's start-up log: where the memory went, and what to change."),
    "cache": CommandListing("Plan", "Size a prefix cache: hits of a trace over GiB of HBM, host memory and NVMe."),
    "web": CommandListing("Plan", "Open the planner as a page in your browser, or write it for any web server."),
    "sweep": CommandListing(
        "Measure", "Measure throughput, occupancy and memory limits with kvplan's own engine or another."
    ),
    "merge": CommandListing("Measure", "Join the shards of a sweep into one run directory.", "report"),
    "profile": CommandListing(
        "Measure", "Profile one setting: memory, batches, and where a step's time goes.", "engine"
    ),
    "bench": CommandListing("Measure", "Benchmark paging against what it replaces.", "engine"),
    "calibrate": CommandListing("Measure", "Fit the predictions to measured rows.", "report"),
    "report": CommandListing("Measure", "Draw tables, plots and a page from a run directory.", "report"),
    "doctor": CommandListing(
        "Measure", "Check this machine: device, driver, and every kernel against torch.", "engine"
    ),
    "serve": CommandListing("Serve", "Serve a model behind OpenAI's API with kvplan's own engine.", "serve"),
    "load": CommandListing("Serve", "Load an OpenAI-compatible server, and say what bound it.", "load"),
    "top": CommandListing("Serve", "Watch running servers, and how many more sequences fit in each."),
    "models": CommandListing("Look up", "List the models known by name."),
    "gpus": CommandListing("Look up", "List the GPUs known by name."),
}
"""Every command is a function of its own name in kvplan/commands/<name>.py."""

MODEL_ARGUMENTS = frozenset({"cache", "estimate", "plan", "profile", "serve"})
"""Commands whose MODEL is an argument, and that take ``--model MODEL`` for it."""

_CLICK_ERROR: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""What typer raises for a wrong command line. Typer brings its own click, so the class is found through typer."""

_EXTRA_ARGUMENTS = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", re.DOTALL)
_NO_COMMAND = re.compile(r"No such command ('.*?')\.?", re.DOTALL)
_INVALID = (
    (re.compile(r": Value error, "), ": "),
    (re.compile(r": Input should be a valid integer, unable to parse.*", re.DOTALL), ": it must be a whole number."),
    (re.compile(r": Input should be a valid number, unable to parse.*", re.DOTALL), ": it must be a number."),
    (re.compile(r": Input should be (.*?)\.?$", re.DOTALL), r": it must be \1."),
)
"""What typer's parser says of a value, and how people do."""


def _print_version(requested: bool) -> None:
    if requested:
        print(f"kvplan {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """How many sequences, and how long, a device can serve with a given model, with which settings, and how fast."""


def _unloaded() -> None:
    """Stands in for a command that is listed but was not asked for."""


def build_app(wanted: str | None) -> typer.Typer:
    """The app with the function of ``wanted`` loaded and all other commands present by name and help only."""
    app = typer.Typer(
        cls=SectionedGroup,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_root)
    for name, (panel, summary, _) in COMMANDS.items():
        loaded = import_module(f"kvplan.commands.{name}") if name == wanted else None
        function = _checked(name, getattr(loaded, name)) if loaded else _unloaded
        app.command(name, cls=SectionedCommand, help=None if loaded else summary, rich_help_panel=panel)(function)
    return app


def _checked(name: str, command: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``command``, which asks for the packages of its extras first; its help needs none."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        if extra := COMMANDS[name].extra:
            need_extra(name, extra)
        try:
            return command(*arguments, **options)
        except KeyboardInterrupt:
            raise typer.Abort from None  # of which something is said: typer itself ends in silence

    return run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 ok, 1 infeasible or failed, 2 usage, 130 interrupted."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it stays open as long as the process
    if sys.stdout is None:
        return _complain("standard output is closed", None, 1)
    # A character that the output's encoding lacks is written as its escape, as on stderr: it ends no run.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if VARIABLE in os.environ and (code := completed_value(os.environ)) is not None:
        return code
    with guarded_output():
        code = _run(words)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError as error:
        return _output_lost(error)
    return code


def _run(words: list[str]) -> int:
    wanted = next((word for word in (_words_to_complete() or words) if not word.startswith("-")), None)
    try:
        app = build_app(wanted)
        code = app(args=_with_lists(words, wanted), prog_name="kvplan", standalone_mode=False)
    except KvplanError as error:
        return _complain(error.message, error.hint, error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except SystemExit as stop:
        return _exit_code(stop)
    except OSError as error:
        return _output_lost(error)
    except _CLICK_ERROR as error:
        message, longer = error.format_message(), _longer_names(error)  # type: ignore[attr-defined]
        if longer:
            return _complain(f"No such option: {error.option_name}", f"is it {longer}?", 2)  # type: ignore[attr-defined]
        return _complain(_plain_message(message), _help_hint(wanted), 2)
    return code if isinstance(code, int) else 0


def _with_lists(words: list[str], wanted: str | None) -> list[str]:
    """Further values of a command's LIST_OPTIONS may follow after spaces, and its FLAG_OPTIONS need none."""
    if wanted not in COMMANDS:
        return words
    command = import_module(f"kvplan.commands.{wanted}")
    words = with_named_model(words, at_end=wanted == "cache") if wanted in MODEL_ARGUMENTS else words
    words = with_flag_words(words, getattr(command, "FLAG_OPTIONS", ()))
    return repeat_options(words, getattr(command, "LIST_OPTIONS", {}))


def _words_to_complete() -> list[str]:
    """The command line that a shell asks to complete: its options are known only where its command is loaded."""
    if VARIABLE not in os.environ:
        return []
    return (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or "").split()[1:]


def _exit_code(stop: SystemExit) -> int:
    """Typer turns a closed pipe into exit code 1; a reader that has seen enough is no failure."""
    if isinstance(stop.__context__, BrokenPipeError):
        _discard_output()
        return 0
    return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


def _output_lost(error: OSError) -> int:
    """A write failed: to a file that has a name, or to the output, of which nothing more is tried."""
    if error.filename is not None:
        return _complain(f"{error.filename}: {error.strerror}", None, 1)
    _discard_output()
    return _complain(f"the output could not be written: {error.strerror or error}", None, 1)


def _discard_output() -> None:
    """Nobody can have our output: say nothing more, neither now nor when Python flushes at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _longer_names(error: Exception) -> str | None:
    """Options that have all words of one that does not exist, and more: ``--rate`` is ``--request-rate`` here."""
    asked, context = getattr(error, "option_name", ""), getattr(error, "ctx", None)
    words = set(asked.strip("-").split("-"))
    if context is None or not words - {""}:
        return None
    options = (name for each in context.command.params for name in (*each.opts, *each.secondary_opts))
    longer = [name for name in options if words <= set(name.strip("-").split("-"))]
    return " or ".join(longer) if len(longer) <= _MOST_NAMES else None


_MOST_NAMES: Final = 3


def _help_hint(wanted: str | None) -> str:
    return f"kvplan {wanted} --help lists the options" if wanted in COMMANDS else "kvplan --help lists the commands"


def _plain_message(message: str) -> str:
    message = _EXTRA_ARGUMENTS.sub(r"unexpected argument '\1'", message)
    for pattern, words in _INVALID:
        message = pattern.sub(words, message)
    return _NO_COMMAND.sub(r"unknown command \1.", message)


def _complain(message: str, hint: str | None, exit_code: int) -> int:
    with suppress(OSError):  # who cannot be told has the exit code
        for text in (f"error: {message.strip()}", f"hint: {hint}" if hint else None):
            if text:
                print(fitted(printable(text), sys.stderr, further="  "), file=sys.stderr)
    return exit_code

"""``kvplan top``: a live view of running servers, and how many more sequences fit in each."""

from __future__ import annotations

import shutil
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kvplan.commands.options.shared import OUTPUT_PANEL

if TYPE_CHECKING:
    from kvplan.top.session import TopSession

NOBODY_ANSWERED: Final = 1
_PLAIN_COLUMNS: Final = 160
"""Where the output is no terminal: as wide as the longest line usually is."""


def top(
    urls: Annotated[
        list[str], typer.Argument(help="Servers, such as localhost:8000 or https://host/prefix.", metavar="URL...")
    ],
    ctx: Annotated[
        list[str] | None,
        typer.Option(
            help="Length of the sequences that still fit, such as 8k: one or a list. Default: the server's longest."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model that the servers run, where their own name for it is not known here."),
    ] = None,
    interval: Annotated[float, typer.Option(min=0, help="Seconds between readings.")] = 2.0,
    window: Annotated[float, typer.Option(min=0, help="Seconds that rates and percentiles look back.")] = 30.0,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as a bearer token.")] = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Read twice, an interval apart, print, and end (0: read once).", rich_help_panel=OUTPUT_PANEL
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --once: one JSON document.", rich_help_panel=OUTPUT_PANEL)
    ] = False,
) -> int:
    """Watch running servers: KV occupancy, queue, latency, and how many more sequences fit now."""
    from kvplan.catalog.models import resolve_model
    from kvplan.errors import UsageError
    from kvplan.top.session import TopOptions, TopSession

    if as_json and not once:
        raise UsageError("--json prints one document, so it needs --once.", hint="kvplan top --once --json URL")
    if interval == 0 and not once:
        raise UsageError("--interval 0 is for --once.", hint="leave it out, or give seconds")
    options = TopOptions(
        urls=tuple(dict.fromkeys(urls)),
        interval_seconds=interval,
        window_seconds=max(window, interval),
        contexts=_contexts(ctx or ()),
        spec=None if model is None else resolve_model(model),
        api_key=api_key,
    )
    session = TopSession(options)
    return _once(session, as_json=as_json) if once else _live(session)


def _contexts(texts: list[str] | tuple[()]) -> tuple[int, ...]:
    from kvplan.units import parse_tokens

    return tuple(dict.fromkeys(parse_tokens(part) for text in texts for part in text.split(",")))


def _once(session: TopSession, *, as_json: bool) -> int:
    """Exit code 1 if no server answered."""
    from kvplan.commands.printing.render import print_json
    from kvplan.top.snapshot import top_document
    from kvplan.top.view import screen

    snapshot = session.read_once()
    if as_json:
        print_json(top_document(snapshot))
    else:
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PLAIN_COLUMNS
        print(screen(snapshot, width=columns, height=None, title=f"kvplan top  {datetime.now():%H:%M:%S}").plain)
    return 0 if any(row.state.is_up for row in snapshot.rows) else NOBODY_ANSWERED


def _live(session: TopSession) -> int:
    from rich.console import Console

    from kvplan.foreign_text import unguarded

    output = unguarded(sys.stdout)
    console = Console(file=output) if sys.stdout.isatty() else Console(file=output, width=_PLAIN_COLUMNS)
    session.run(console)
    return 0

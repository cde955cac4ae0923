"""``kvplan web``: the page with the planner in it, served on loopback or written for any static host."""

from __future__ import annotations

import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from kvplan.site.serving import serve_site
from kvplan.site.writing import write_site
from kvplan.units import format_bytes


def web(
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the whole site to this folder instead of serving it.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 is any that is free.")] = 8765,
    pyodide: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Pyodide's folder or npm archive, where it cannot be fetched. Default: fetched once, and kept.",
        ),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the page in a browser.")] = False,
) -> None:
    """Open the planner as a page in your browser, which computes everything itself and sends nothing.

    With --export the page, the planner and Python for browsers are written to a folder that any web server can serve.
    """
    if export is not None:
        size = write_site(export, pyodide)
        command = shlex.join(["python", "-m", "http.server", "--directory", str(export)])
        print(f"{export}: {format_bytes(size, digits=1)}; for example: {command}")
        return
    with TemporaryDirectory(prefix="kvplan-web-") as folder:
        write_site(Path(folder), pyodide)
        serve_site(Path(folder), port, opens=not no_open)

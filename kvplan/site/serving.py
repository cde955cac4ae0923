"""A folder of static files on loopback."""

from __future__ import annotations

import mimetypes
import webbrowser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from kvplan.errors import KvplanError

HOST: Final = "127.0.0.1"
_TYPES: Final = {".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm"}
"""Whatever the system believes: a browser runs no module of another type."""


class _Files(SimpleHTTPRequestHandler):
    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, **_TYPES}  # noqa: RUF012 - as its base has it

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")  # asked again, answered 304 where nothing changed
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a line for each file is no use to whoever opened a page."""


def site_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Return a server of ``folder``, bound and not yet running. KvplanError where the port cannot be had."""
    mimetypes.init()
    try:
        return ThreadingHTTPServer((HOST, port), partial(_Files, directory=str(folder)))
    except OSError as error:
        raise KvplanError(
            f"Port {port} of {HOST} cannot be had: {error.strerror}.", hint="name another with --port, or 0 for any"
        ) from error


def serve_site(folder: Path, port: int, *, opens: bool) -> None:
    """Serve until the user interrupts; ``opens`` the page in the user's browser."""
    with site_server(folder, port) as server:
        address = f"http://{HOST}:{server.server_address[1]}/"
        print(f"kvplan's page is at {address} (Ctrl-C ends it)", flush=True)
        if opens:
            webbrowser.open(address)
        server.serve_forever()

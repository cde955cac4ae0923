"""A server whose pages a test changes while it is watched."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from metric_pages import vllm_page


class PageServer:
    """``pages``: path -> text; another path is 404. It listens at ``url`` until ``stop``, and again after ``start``."""

    def __init__(self, pages: dict[str, str]) -> None:
        self.pages = pages
        self._port = 0
        self.start()

    def start(self) -> None:
        """Listen, after ``stop`` at the same port as before."""
        pages = self.pages

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                text = pages.get(self.path)
                self.send_response(404 if text is None else 200)
                body = (text or "").encode()
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Connection", "close")  # so that stopping leaves no connection open
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = True

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"


def vllm_pages(model: str = "meta-llama/Llama-3.1-8B", **values: Any) -> dict[str, str]:
    """A vLLM server of 504 usable blocks of 16 tokens, 256 seats and a context of 4,096 tokens."""
    info = {"vllm_config": {"scheduler_config": {"max_num_seqs": 256}}}
    card = {"id": model, "root": model, "max_model_len": 4096}
    return {
        "/metrics": vllm_page(labels=f'engine="0",model_name="{model}"', **values),
        "/server_info?config_format=json": json.dumps(info),
        "/v1/models": json.dumps({"data": [card]}),
    }


@contextmanager
def page_server(pages: dict[str, str]) -> Iterator[PageServer]:
    server = PageServer(pages)
    try:
        yield server
    finally:
        server.stop()

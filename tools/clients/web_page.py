"""A page of another origin in Chromium, which asks the server by ``fetch`` as a chat on a company's intranet does."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from clients.browser import browser
from clients.findings import Findings
from clients.served import MODEL, Served

_NUM_TOKENS = 24
_STREAMED = """
(async () => {
  const answer = await fetch(%s, {method: "POST", headers: {"Content-Type": "application/json", "X-Request-Id": "page"},
    body: JSON.stringify(%s)});
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", parts = 0;
  for (;;) { const {done, value} = await reader.read(); if (done) break; text += value; parts += 1; }
  const lines = text.split("\\n").filter(line => line.startsWith("data: ")).map(line => line.slice(6));
  const usage = JSON.parse(lines[lines.length - 2]).usage;
  return JSON.stringify([answer.status, lines[lines.length - 1], usage && usage.completion_tokens]);
})()
"""


def check_web_page(server: Served, executable: Path | None) -> Findings:
    """The browser sends a preflight first, for the headers are not simple ones."""
    if executable is None:
        return Findings("page in Chromium", missing="no --chromium")
    said = subprocess.run([str(executable), "--version"], capture_output=True, text=True, check=True).stdout
    findings = Findings("page in Chromium", re.findall(r"[0-9.]+", said)[0])
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What is a cache?"}],
        "max_tokens": _NUM_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with _page() as url, browser(executable) as tab:
        tab.open(url)
        tab.wait_for("document.readyState === 'complete'", 30)
        script = _STREAMED % (json.dumps(f"{server.url}/v1/chat/completions"), json.dumps(body))
        found = json.loads(tab.evaluate(script))
        findings.equal("a chat streamed to another origin: status, last event, tokens", found, [200, "[DONE]", 24])
        models = (
            f"fetch({json.dumps(server.url + '/v1/models')}).then(answer => answer.json()).then(all => all.data[0].id)"
        )
        findings.equal("GET /v1/models from another origin", tab.evaluate(models), MODEL)
    return findings


@contextmanager
def _page() -> Iterator[str]:
    """An empty page on a port of its own: another origin."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "index.html").write_text("<title>chat</title>", encoding="utf-8")
        handler = partial(_Quiet, directory=folder)
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as host:
            Thread(target=host.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{host.server_port}/"
            host.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *values: object) -> None:
        """Nothing."""

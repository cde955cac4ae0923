"""curl, as in the documentation: whole answers, streams, and what an error looks like."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

from clients.findings import Findings
from clients.served import MODEL, Served

_QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
_NUM_TOKENS = 24


def check_curl(server: Served) -> Findings:
    if shutil.which("curl") is None:
        return Findings("curl", missing="it is not installed")
    findings = Findings("curl", _run("--version").split()[1])
    findings.equal("GET /health", _run("-o", "/dev/null", "-w", "%{http_code}", f"{server.url}/health"), "200")
    findings.equal("GET /v1/models", _json(f"{server.url}/v1/models")["data"][0]["id"], MODEL)
    chat = {"model": MODEL, "messages": _QUESTION, "temperature": 0, "max_tokens": 32}
    answer = _post(server, "/v1/chat/completions", chat)["choices"][0]["message"]["content"]
    findings.check("a chat knows the capital of France", "Paris" in answer, f"“{answer}”")
    _check_streams(server, findings)
    refused = _post(server, "/v1/completions", {"model": "another", "prompt": "Hello"})["error"]
    findings.equal("an unknown model", (refused["code"], refused["type"]), (404, "NotFoundError"))
    return findings


def _check_streams(server: Served, findings: Findings) -> None:
    asked = {"model": MODEL, "max_tokens": _NUM_TOKENS, "ignore_eos": True, "stream": True}
    asked |= {"stream_options": {"include_usage": True}}
    for path, prompt in (
        ("/v1/completions", {"prompt": "The paged cache"}),
        ("/v1/chat/completions", {"messages": _QUESTION}),
    ):
        before = server.counts()
        events = [line[6:] for line in _raw(server, path, asked | prompt).splitlines() if line.startswith("data: ")]
        chunks = [json.loads(event) for event in events[:-1]]
        carrying = [chunk for chunk in chunks if chunk["choices"] and _carries_token(chunk["choices"][0])]
        counts = (
            len(carrying),
            chunks[-1]["usage"]["completion_tokens"],
            server.counts().since(before).generation_tokens,
        )
        findings.equal(f"{path}: tokens by chunks, by usage, by the server", counts, (_NUM_TOKENS,) * 3)
        findings.equal(f"{path}: the last event", events[-1], "[DONE]")


def _carries_token(choice: dict[str, Any]) -> bool:
    return "text" in choice or "role" not in choice["delta"]


def _run(*arguments: str) -> str:
    return subprocess.run(["curl", "-s", *arguments], capture_output=True, text=True, check=True, timeout=120).stdout


def _json(*arguments: str) -> Any:
    return json.loads(_run(*arguments))


def _raw(server: Served, path: str, document: dict[str, Any]) -> str:
    return _run("-N", server.url + path, "-H", "Content-Type: application/json", "-d", json.dumps(document))


def _post(server: Served, path: str, document: dict[str, Any]) -> Any:
    return json.loads(_raw(server, path, document))

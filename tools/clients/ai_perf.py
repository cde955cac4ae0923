"""AIPerf, on completions and on chats."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from clients.findings import Findings
from clients.running import run_client
from clients.served import MODEL, Served

NUM_REQUESTS, STREAMS, INPUT_LEN, OUTPUT_LEN = 24, 8, 128, 24


def check_aiperf(server: Served, executable: Path | None, tokenizer: Path) -> Findings:
    """Compare tokens by the server's ``usage``: tokenizing texts again, as it does too, gives a few less."""
    if executable is None:
        return Findings("AIPerf", missing="no --aiperf")
    findings = Findings("AIPerf", run_client([str(executable), "--version"], Path.cwd()).split()[-1])
    for endpoint, path in (("completions", "/v1/completions"), ("chat", "/v1/chat/completions")):
        before = server.counts()
        result = _profile(server, executable, tokenizer, endpoint)
        found = server.counts().since(before)
        errors = sum(each["count"] for each in result["error_summary"])
        findings.equal(f"{path}: completed, failed", (_figure(result, "request_count"), errors), (NUM_REQUESTS, 0))
        tokens = (_figure(result, "total_usage_completion_tokens"), found.generation_tokens)
        findings.equal(f"{path}: tokens generated, by client and server", tokens, (NUM_REQUESTS * OUTPUT_LEN,) * 2)
        prompts = (_figure(result, "total_usage_prompt_tokens"), found.prompt_tokens)
        findings.check(f"{path}: prompt tokens, by client and server", prompts[0] == prompts[1] > 0, prompts)
        findings.details.append(_line(path, result))
    return findings


def _profile(server: Served, executable: Path, tokenizer: Path, endpoint: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(executable), "profile", "--model", MODEL, "--url", server.url, "--endpoint-type", endpoint]
        command += ["--streaming", "--tokenizer", str(tokenizer), "--concurrency", str(STREAMS)]
        command += ["--request-count", str(NUM_REQUESTS), "--prompt-input-tokens-mean", str(INPUT_LEN)]
        command += ["--prompt-input-tokens-stddev", "0", "--prompt-output-tokens-mean", str(OUTPUT_LEN)]
        command += ["--extra-inputs", "ignore_eos:true", "--output-artifact-dir", folder, "--ui", "none"]
        run_client(command, Path(folder))
        document: dict[str, Any] = json.loads(Path(folder, "profile_export_aiperf.json").read_text(encoding="utf-8"))
    return document


def _figure(result: dict[str, Any], name: str) -> int:
    return round(result[name]["avg"])


def _line(path: str, result: dict[str, Any]) -> str:
    means = [result[name]["avg"] for name in ("time_to_first_token", "inter_token_latency")]
    return f"{path}: mean TTFT {means[0]:,.0f} ms, mean ITL {means[1]:.1f} ms"

"""GuideLLM, on completions and on chats."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from clients.findings import Findings
from clients.running import run_client
from clients.served import MODEL, Served

NUM_REQUESTS, STREAMS, INPUT_LEN, OUTPUT_LEN = 24, 8, 128, 24


def check_guidellm(server: Served, executable: Path | None, tokenizer: Path) -> Findings:
    if executable is None:
        return Findings("GuideLLM", missing="no --guidellm")
    findings = Findings("GuideLLM", _run([str(executable), "--version"], Path.cwd()).split()[-1])
    for path in ("/v1/completions", "/v1/chat/completions"):
        before = server.counts()
        metrics = _metrics(server, executable, tokenizer, path)
        found = server.counts().since(before)
        totals = metrics["request_totals"]
        served = (totals["successful"], totals["errored"] + totals["incomplete"])
        findings.equal(f"{path}: completed, failed", served, (NUM_REQUESTS, 0))
        tokens = (_sum(metrics, "output_token_count"), found.generation_tokens)
        findings.equal(f"{path}: tokens generated, by client and server", tokens, (NUM_REQUESTS * OUTPUT_LEN,) * 2)
        prompts = (_sum(metrics, "prompt_token_count"), found.prompt_tokens)
        findings.check(f"{path}: prompt tokens, by client and server", prompts[0] == prompts[1] > 0, prompts)
        findings.details.append(_line(path, metrics))
    return findings


def _metrics(server: Served, executable: Path, tokenizer: Path, path: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(executable), "run", "--disable-console", "--profile", f"kind=concurrent,streams={STREAMS}"]
        command += ["--backend", f"kind=openai_http,target={server.url},model={MODEL},request_format={path}"]
        command += ["--constraint", f"kind=max_requests,count={NUM_REQUESTS}"]
        command += ["--tokenizer", f"kind=hf_auto,model={tokenizer}", "--output", "kind=json,path=result.json"]
        command += ["--data", f"kind=synthetic_text,prompt_tokens={INPUT_LEN},output_tokens={OUTPUT_LEN}"]
        _run(command, Path(folder))
        document = json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))
    metrics: dict[str, Any] = document["benchmarks"][0]["metrics"]
    return metrics


def _sum(metrics: dict[str, Any], name: str) -> int:
    return round(metrics[name]["successful"]["total_sum"])


def _line(path: str, metrics: dict[str, Any]) -> str:
    means = [metrics[name]["successful"]["mean"] for name in ("time_to_first_token_ms", "inter_token_latency_ms")]
    return f"{path}: mean TTFT {means[0]:,.0f} ms, mean ITL {means[1]:.1f} ms"


def _run(command: list[str], folder: Path) -> str:
    return run_client(command, folder, HF_HUB_OFFLINE="1", GUIDELLM__ENABLE_TELEMETRY="0")

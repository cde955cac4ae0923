"""`vllm bench serve`, on completions and on chats."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from clients.findings import Findings
from clients.served import MODEL, Served

NUM_PROMPTS, CONCURRENCY, INPUT_LEN, OUTPUT_LEN = 24, 8, 128, 24


def check_vllm_bench(server: Served, executable: Path | None, tokenizer: Path) -> Findings:
    if executable is None:
        return Findings("vllm bench serve", missing="no --vllm")
    said = _run([str(executable), "--version"])
    findings = Findings("vllm bench serve", re.findall(r"\d+\.\d+\.\d+\S*", said)[-1])
    for backend, path in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
        before = server.counts()
        result = _bench(server, executable, tokenizer, backend, path)
        found = server.counts().since(before)
        findings.equal(f"{path}: completed, failed", (result["completed"], result["failed"]), (NUM_PROMPTS, 0))
        tokens = (result["total_output_tokens"], found.generation_tokens)
        findings.equal(f"{path}: tokens generated, by client and server", tokens, (NUM_PROMPTS * OUTPUT_LEN,) * 2)
        if backend == "openai":  # of a chat the client does not count the template
            prompts = (result["total_input_tokens"], found.prompt_tokens)
            findings.equal(f"{path}: prompt tokens, by client and server", prompts, (NUM_PROMPTS * INPUT_LEN,) * 2)
        findings.details.append(_line(path, result))
    return findings


def _bench(server: Served, executable: Path, tokenizer: Path, backend: str, path: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(executable), "bench", "serve", "--backend", backend, "--base-url", server.url]
        command += ["--endpoint", path, "--model", MODEL, "--tokenizer", str(tokenizer), "--dataset-name", "random"]
        command += ["--random-input-len", str(INPUT_LEN), "--random-output-len", str(OUTPUT_LEN), "--ignore-eos"]
        command += ["--num-prompts", str(NUM_PROMPTS), "--max-concurrency", str(CONCURRENCY), "--disable-tqdm"]
        _run([*command, "--save-result", "--result-dir", folder, "--result-filename", "result.json"])
        document: dict[str, Any] = json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))
    return document


def _line(path: str, result: dict[str, Any]) -> str:
    rate, ttft, tpot = (result[name] for name in ("output_throughput", "mean_ttft_ms", "mean_tpot_ms"))
    return f"{path}: {rate:.1f} output tokens/s, mean TTFT {ttft:,.0f} ms, mean TPOT {tpot:.1f} ms"


def _run(command: list[str]) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    environment.pop("PYTHONPATH", None)  # the client has an environment of its own
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command)} failed: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout

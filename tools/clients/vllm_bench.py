"""`vllm bench serve`, on completions and on chats."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from clients.findings import Findings
from clients.running import run_client
from clients.served import MODEL, Served

NUM_PROMPTS, CONCURRENCY, INPUT_LEN, OUTPUT_LEN = 24, 8, 128, 24
RANDOM: Final = (
    *("--dataset-name", "random", "--random-input-len", str(INPUT_LEN), "--random-output-len", str(OUTPUT_LEN)),
    *("--num-prompts", str(NUM_PROMPTS), "--max-concurrency", str(CONCURRENCY)),
)
TRACE: Final[tuple[dict[str, Any], ...]] = tuple(
    {
        "timestamp": 1500 * number,
        "input_length": 16 * 6 + number,
        "output_length": 4 + number,
        "hash_ids": [1, 2, 3, 3 + number % 3, 100 + number % 2, 200 + number % 3, 300 + number],
    }
    for number in range(10)
)
"""Ten conversations that branch, 1.5 s apart: each has ended when the next one is sent."""


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
    _check_trace(server, executable, tokenizer, findings)
    return findings


def _check_trace(server: Served, executable: Path, tokenizer: Path, findings: Findings) -> None:
    """Replay a timed trace, whose hash ids stand for blocks of 16 tokens: what is found again follows from them."""
    path, before = "/v1/completions", server.counts()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.jsonl"
        file.write_text("".join(f"{json.dumps(each)}\n" for each in TRACE), encoding="utf-8")
        options = ["--dataset-name", "timed_trace", "--dataset-path", str(file)]
        options += ["--timed-trace-sec-multiplier", "0.001", "--num-prompts", str(len(TRACE))]
        result = _bench(server, executable, tokenizer, "openai", path, options)
    found = server.counts().since(before)
    findings.equal("timed trace: completed, failed", (result["completed"], result["failed"]), (len(TRACE), 0))
    lengths = tuple(sum(each[name] for each in TRACE) for name in ("input_length", "output_length"))
    findings.equal("timed trace: tokens by the server", (found.prompt_tokens, found.generation_tokens), lengths)
    findings.equal("timed trace: prompt tokens found again", found.hit_tokens, _found_again())
    took = TRACE[-1]["timestamp"] / 1000
    findings.check(f"timed trace: sent over {took:g} s", result["duration"] >= took, f"{result['duration']:.1f} s")


def _found_again() -> int:
    """Tokens that a cache of blocks of 16 finds, none of which is evicted; the last token is always computed."""
    seen: set[tuple[int, ...]] = set()
    tokens = 0
    for each in TRACE:
        ids, full = each["hash_ids"], (each["input_length"] - 1) // 16
        tokens += 16 * sum(tuple(ids[: place + 1]) in seen for place in range(full))
        seen |= {tuple(ids[: place + 1]) for place in range(each["input_length"] // 16)}
    return tokens


def _bench(
    server: Served, executable: Path, tokenizer: Path, backend: str, path: str, dataset: Sequence[str] = RANDOM
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(executable), "bench", "serve", "--backend", backend, "--base-url", server.url]
        command += ["--endpoint", path, "--model", MODEL, "--tokenizer", str(tokenizer), *dataset]
        command += ["--ignore-eos", "--disable-tqdm"]
        _run([*command, "--save-result", "--result-dir", folder, "--result-filename", "result.json"])
        document: dict[str, Any] = json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))
    return document


def _line(path: str, result: dict[str, Any]) -> str:
    rate, ttft, tpot = (result[name] for name in ("output_throughput", "mean_ttft_ms", "mean_tpot_ms"))
    return f"{path}: {rate:.1f} output tokens/s, mean TTFT {ttft:,.0f} ms, mean TPOT {tpot:.1f} ms"


def _run(command: list[str]) -> str:
    return run_client(command, HF_HUB_OFFLINE="1", DO_NOT_TRACK="1")

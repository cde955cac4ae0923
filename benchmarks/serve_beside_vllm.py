"""`kvplan serve` beside vLLM's server, in turn, under the same load of each client: what differs, and what clients see.

    python benchmarks/serve_beside_vllm.py MODEL --vllm ENV --guidellm ENV --dtype bfloat16 --priority 5

MODEL is a directory with a config and a tokenizer; weights are random on both sides. ENV are virtual environments.
Both servers stay up, one engine thread each, and each round loads one and then the other with every client. Each figure
of a client stands beside what the server says of the very same requests (the sums of its histograms, which are exact).
One JSON line per run; the last one holds medians, and vLLM's over kvplan's as ratios per round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

PORTS = {"kvplan": 8211, "vllm": 8212}
CONTEXT, SEATS, KV_BYTES = "1024", "16", 500_000_000
_HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
}
_FIGURES = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms")


@dataclass(frozen=True, slots=True)
class Bench:
    """What is asked for. priority: of SCHED_FIFO for servers and clients, 0 for the usual one."""

    model: str
    vllm: Path
    guidellm: Path | None
    dtype: str
    num_prompts: int
    concurrency: int
    input_len: int
    output_len: int
    rounds: int
    priority: int
    library_preloads: str

    def command(self, words: Sequence[str]) -> list[str]:
        return ["chrt", "-f", str(self.priority), *words] if self.priority else list(words)


def server_command(name: str, bench: Bench) -> list[str]:
    shared = ["--host", "127.0.0.1", "--port", str(PORTS[name]), "--served-model-name", "model", "--dtype", bench.dtype]
    shared += ["--load-format", "dummy", "--max-model-len", CONTEXT, "--max-num-seqs", SEATS]
    if name == "kvplan":
        return [sys.executable, "-m", "kvplan", "serve", bench.model, *shared, "--device-memory", "2GiB"]
    api = ["-m", "vllm.entrypoints.openai.api_server", "--model", bench.model]
    return [str(bench.vllm / "bin" / "python"), *api, *shared, "--kv-cache-memory-bytes", str(KV_BYTES)]


@contextmanager
def running(name: str, bench: Bench) -> Iterator[str]:
    """A server's URL once it answers. vLLM keeps one of two cores for its API by itself; kvplan is asked to."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    if name == "vllm":
        environment["LD_PRELOAD"] = bench.library_preloads
    else:
        environment["OMP_NUM_THREADS"] = "1"
    url = f"http://127.0.0.1:{PORTS[name]}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            bench.command(server_command(name, bench)), env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            _wait_for(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if process.poll() is not None:
            raise SystemExit(f"the server at {url} ended with exit code {process.returncode}")
        try:
            urlopen(f"{url}/health").close()
        except OSError:
            time.sleep(1)
        else:
            return
    raise SystemExit(f"no answer from {url}")


def histogram_sums(url: str) -> dict[str, tuple[float, float]]:
    """name -> (seconds, observations) since the server started."""
    with urlopen(f"{url}/metrics") as page:
        families = text_string_to_metric_families(page.read().decode())
        values = {
            sample.name: sample.value for family in families for sample in family.samples if "le" not in sample.labels
        }
    return {
        name: (values.get(f"{metric}_sum", 0.0), values.get(f"{metric}_count", 0.0))
        for name, metric in _HISTOGRAMS.items()
    }


def run_client(client: str, url: str, bench: Bench, seed: int) -> dict[str, float | None]:
    with tempfile.TemporaryDirectory() as folder:
        words = {"vllm bench serve": _vllm_words, "kvplan load": _kvplan_words, "guidellm": _guidellm_words}[client]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "GUIDELLM__ENABLE_TELEMETRY": "0"}
        done = subprocess.run(
            bench.command(words(url, bench, seed, folder)),
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{client} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        if client == "guidellm":
            return _guidellm_figures(json.loads((Path(folder) / "result.json").read_text()))
        document = json.loads(done.stdout if client == "kvplan load" else (Path(folder) / "result.json").read_text())
    assert document["completed"] == bench.num_prompts, "not every request was served"
    assert document["total_output_tokens"] == bench.num_prompts * bench.output_len, "tokens were lost"
    figures = {name: document[name] for name in (*_FIGURES, "mean_itl_ms")}
    if client == "kvplan load":  # what the server says without the two small requests that come before the load
        figures |= {"server_ttft_ms": document["server_mean_ttft_ms"], "server_itl_ms": document["server_mean_itl_ms"]}
    return figures


def _vllm_words(url: str, bench: Bench, seed: int, folder: str) -> list[str]:
    words = [str(bench.vllm / "bin" / "vllm"), "bench", "serve", "--backend", "openai", "--base-url", url]
    words += ["--model", "model", "--tokenizer", bench.model, "--dataset-name", "random", "--ignore-eos"]
    words += ["--random-input-len", str(bench.input_len), "--random-output-len", str(bench.output_len)]
    words += ["--num-prompts", str(bench.num_prompts), "--max-concurrency", str(bench.concurrency), "--seed", str(seed)]
    return [*words, "--save-result", "--result-filename", "result.json", "--disable-tqdm"]


def _kvplan_words(url: str, bench: Bench, seed: int, folder: str) -> list[str]:
    words = [sys.executable, "-m", "kvplan", "load", url, "--num-prompts", str(bench.num_prompts), "--json"]
    words += ["--max-concurrency", str(bench.concurrency), "--input-len", str(bench.input_len)]
    return [*words, "--output-len", str(bench.output_len), "--seed", str(seed), "--out", f"{folder}/run"]


def _guidellm_words(url: str, bench: Bench, seed: int, folder: str) -> list[str]:
    words = [str(bench.guidellm / "bin" / "guidellm"), "run", "--disable-console"]
    words += ["--backend", f"kind=openai_http,target={url},model=model,request_format=/v1/completions"]
    words += ["--profile", f"kind=concurrent,streams={bench.concurrency}", "--seed", f"kind=static,value={seed}"]
    words += ["--constraint", f"kind=max_requests,count={bench.num_prompts}"]
    words += ["--tokenizer", f"kind=hf_auto,model={bench.model}", "--output", "kind=json,path=result.json"]
    lengths = f"prompt_tokens={bench.input_len},output_tokens={bench.output_len}"
    return [*words, "--data", f"kind=synthetic_text,{lengths}"]


def _guidellm_figures(document: dict[str, Any]) -> dict[str, float | None]:
    metrics = document["benchmarks"][0]["metrics"]
    served = {
        "mean_ttft_ms": "time_to_first_token_ms",
        "mean_tpot_ms": "time_per_output_token_ms",
        "mean_itl_ms": "inter_token_latency_ms",
    }
    found = {name: metrics[its]["successful"]["mean"] for name, its in served.items()}
    return {"output_throughput": metrics["output_tokens_per_second"]["total"]["mean"], **found}


def measure(client: str, server: str, url: str, bench: Bench, number: int) -> dict[str, Any]:
    """One run: the client's figures, and the server's means of the same requests in ms."""
    before = histogram_sums(url)
    figures = run_client(client, url, bench, seed=number)
    time.sleep(0.5)  # engines count the last request a moment after its last token
    row: dict[str, Any] = {"round": number, "server": server, "client": client, **figures}
    for name, (seconds, count) in histogram_sums(url).items():
        row.setdefault(f"server_{name}_ms", 1000 * (seconds - before[name][0]) / max(1.0, count - before[name][1]))
    print(json.dumps(row), flush=True)
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Per client: medians, ratios kvplan / vLLM of each round, and how far the client is from the server, in %."""
    found: dict[str, Any] = {}
    for client in dict.fromkeys(row["client"] for row in rows):
        of = {name: [row for row in rows if (row["client"], row["server"]) == (client, name)] for name in PORTS}
        found[client] = {
            "median": {
                name: {key: statistics.median(row[key] for row in runs) for key in _FIGURES}
                for name, runs in of.items()
            },
            "kvplan_over_vllm": {
                key: [round(ours[key] / theirs[key], 3) for ours, theirs in zip(of["kvplan"], of["vllm"], strict=True)]
                for key in _FIGURES
            },
            "off_by_percent": {
                name: {key: [_off(row, key) for row in runs] for key in ("ttft", "itl")} for name, runs in of.items()
            },
        }
    return found


def _off(row: dict[str, Any], name: str) -> float | None:
    """None where the client has no such figure: `kvplan load` has no ITL where chunks held several tokens."""
    figure = row[f"mean_{name}_ms"]
    return None if figure is None else round(100.0 * (float(figure) / float(row[f"server_{name}_ms"]) - 1), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--vllm", type=Path, required=True)
    parser.add_argument("--guidellm", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--priority", type=int, default=0, help="of SCHED_FIFO, where other work shares the machine")
    parser.add_argument("--library-preloads", default="", help="LD_PRELOAD for vLLM, as its log advises")
    bench = Bench(**vars(parser.parse_args()))
    clients = ["vllm bench serve", "kvplan load", *(["guidellm"] if bench.guidellm else [])]
    rows = []
    with running("kvplan", bench) as ours, running("vllm", bench) as theirs:
        for number in range(bench.rounds + 1):
            for client in clients if number else clients[:1]:  # the first round warms both up
                pair = [measure(client, name, url, bench, number) for name, url in (("kvplan", ours), ("vllm", theirs))]
                rows += pair if number else []
    print(json.dumps(summary(rows)))


if __name__ == "__main__":
    main()

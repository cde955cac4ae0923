"""What the server costs: CPU of the API process per token and per request, and throughput beside LLM.generate's.

    python benchmarks/serve_overhead.py --model FILE.gguf --threads 1

Both serve the same prompts with the same settings, in turn, on the same machine: while one runs, the other waits. All
streams begin together, and every token is a chunk of its own. The client reads sockets and counts chunks. Answers of
two lengths tell what one more token costs from what a request costs, however long its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_SHORT_SHARE = 4  # the short answers have a fourth of the long ones' tokens


@dataclass(frozen=True, slots=True)
class Round:
    """One run of all streams. api_cpu_seconds, engine_cpu_seconds, client_cpu_seconds: while it ran."""

    seconds: float
    num_tokens: int
    api_cpu_seconds: float
    engine_cpu_seconds: float
    client_cpu_seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def api_us_per_token(self) -> float:
        return self.api_cpu_seconds / self.num_tokens * 1e6


def _cpu_seconds(pid: int) -> float:
    """Of all its threads that still run, from the scheduler's own clock: /proc/PID/stat counts in ticks of 10 ms."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text(encoding="utf-8").split()[0]) for each in threads) / 1e9


def _machine_seconds() -> float:
    """CPU time of everything on this machine, without idling."""
    fields = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:]
    busy = [int(value) for index, value in enumerate(fields[:8]) if index not in (3, 4)]
    return sum(busy) / _TICKS


class Server:
    def __init__(self, arguments: argparse.Namespace, settings: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvplan_engine.server"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None and self.process.stderr is not None
        json.dump({"model": arguments.model, "port": 0, "settings": settings}, self.process.stdin)
        self.process.stdin.close()
        found = next(filter(None, (re.search(r" at http://.*:(\d+)", line) for line in self.process.stderr)))
        self.port = int(found[1])

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="utf-8")
        return int(children.split()[0])


async def _stream(port: int, prompt: list[int], num_tokens: int) -> int:
    body = {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    writer.write(f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    received = await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    return received.count(b'"text":')


async def _all_streams(port: int, prompts: list[list[int]], num_tokens: int) -> int:
    return sum(await asyncio.gather(*(_stream(port, prompt, num_tokens) for prompt in prompts)))


def over_http(server: Server, prompts: list[list[int]], num_tokens: int) -> Round:
    api, engine = server.process.pid, server.engine_pid()
    before = (_cpu_seconds(api), _cpu_seconds(engine), time.process_time(), time.perf_counter())
    number = asyncio.run(_all_streams(server.port, prompts, num_tokens))
    after = (_cpu_seconds(api), _cpu_seconds(engine), time.process_time(), time.perf_counter())
    assert number == len(prompts) * num_tokens, "a chunk is not a token"
    api_cpu, engine_cpu, client_cpu, seconds = (end - start for start, end in zip(before, after, strict=True))
    return Round(seconds, number, api_cpu, engine_cpu, client_cpu)


def offline(llm: Any, prompts: list[list[int]], num_tokens: int) -> Round:
    from kvplan_engine import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    cpu, start = time.process_time(), time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    seconds = time.perf_counter() - start
    number = sum(len(output.outputs[0].token_ids) for output in outputs)
    return Round(seconds, number, 0.0, time.process_time() - cpu, 0.0)


def _prompts(arguments: argparse.Namespace, number: int) -> list[list[int]]:
    """Different in every round, so that no prefix is found again."""
    draw = random.Random(number)
    return [
        [draw.randrange(100, arguments.vocab_size) for _ in range(arguments.prompt_len)]
        for _ in range(arguments.streams)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="with a tokenizer: a directory or a .gguf file")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=256)
    parser.add_argument("--prompt-len", type=int, default=32)
    parser.add_argument("--vocab-size", type=int, default=10_000, help="prompts are drawn from the tokens below it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of the engine, on both sides; default: all cores")
    arguments = parser.parse_args()
    if arguments.threads:
        os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    from kvplan_engine import LLM

    settings = {"device": "cpu", "device_memory": "2GiB", "max_num_seqs": arguments.streams, "max_model_len": 1024}
    llm = LLM(arguments.model, **settings)
    server = Server(arguments, settings)
    try:
        served, short, alone, others = [], [], [], []
        for number in range(arguments.rounds + 1):
            prompts = _prompts(arguments, number)
            busy, start = _machine_seconds(), time.perf_counter()
            rounds = (
                offline(llm, prompts, arguments.output_len),
                over_http(server, prompts, arguments.output_len),
                over_http(server, _prompts(arguments, -1 - number), arguments.output_len // _SHORT_SHARE),
            )
            elapsed = time.perf_counter() - start
            own = sum(each.api_cpu_seconds + each.engine_cpu_seconds + each.client_cpu_seconds for each in rounds)
            if number:  # the first round warms up
                alone.append(rounds[0])
                served.append(rounds[1])
                short.append(rounds[2])
                others.append((_machine_seconds() - busy - own) / elapsed)
    finally:
        server.process.terminate()
        server.process.wait()
    _report(arguments, alone, served, short, others)


def _token_and_request_us(long: Round, short: Round, streams: int) -> tuple[float, float]:
    """CPU of the API process for one more token, and for a request without its tokens."""
    token = (long.api_cpu_seconds - short.api_cpu_seconds) / (long.num_tokens - short.num_tokens)
    return token * 1e6, (short.api_cpu_seconds - token * short.num_tokens) / streams * 1e6


def _report(
    arguments: argparse.Namespace, alone: list[Round], served: list[Round], short: list[Round], others: list[float]
) -> None:
    apart = [_token_and_request_us(*pair, arguments.streams) for pair in zip(served, short, strict=True)]
    ratios = [one.tokens_per_second / other.tokens_per_second for one, other in zip(served, alone, strict=True)]
    figures = {
        "model": Path(arguments.model).name,
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "engine_threads": arguments.threads or os.cpu_count(),
        "streams": arguments.streams,
        "output_len": arguments.output_len,
        "offline_tokens_per_second": [round(each.tokens_per_second, 1) for each in alone],
        "http_tokens_per_second": [round(each.tokens_per_second, 1) for each in served],
        "ratio": [round(ratio, 3) for ratio in ratios],
        "ratio_median": round(statistics.median(ratios), 3),
        "api_cpu_us_per_further_token": [round(token, 1) for token, _ in apart],
        "api_cpu_us_per_request": [round(request) for _, request in apart],
        "api_cpu_us_per_token": [round(each.api_us_per_token, 1) for each in served],
        "client_cpu_us_per_token": [round(each.client_cpu_seconds / each.num_tokens * 1e6, 1) for each in served],
        "cores_of_others": [round(each, 2) for each in others],
    }
    print(json.dumps(figures, indent=2))


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    main()

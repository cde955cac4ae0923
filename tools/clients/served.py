"""`kvplan serve` in a process of its own, started as a user would, and what it counts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from prometheus_client.parser import text_string_to_metric_families

MODEL = "smollm2"
_START_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens and requests since the server started, as its metrics say."""

    prompt_tokens: int
    generation_tokens: int
    finished: int
    hit_tokens: int

    def since(self, before: Counts) -> Counts:
        return Counts(
            self.prompt_tokens - before.prompt_tokens,
            self.generation_tokens - before.generation_tokens,
            self.finished - before.finished,
            self.hit_tokens - before.hit_tokens,
        )


class Served:
    """A server for the model at ``model``, called ``smollm2``. Use as a context manager."""

    def __init__(self, model: Path, options: list[str]) -> None:
        self._command = [sys.executable, "-m", "kvplan", "serve", str(model), "--port", "0"]
        self._command += ["--served-model-name", MODEL, *options]
        self.url = ""

    def __enter__(self) -> Served:
        self._log = tempfile.TemporaryFile()
        path = os.pathsep.join(entry for entry in sys.path if entry)
        environment = {**os.environ, "PYTHONPATH": path}
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log, env=environment)
        deadline = time.monotonic() + _START_SECONDS
        while not self.url:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                raise SystemExit(f"error: the server did not start: {self._said()}")
            time.sleep(0.2)
            found = re.search(r" at (http://\S+)", self._said())
            self.url = found[1] if found else ""
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)
        self._log.close()

    def engine_processes(self) -> list[int]:
        """Process ids of its engines, in order."""
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                parent = int(status.read_text().rpartition(")")[2].split()[1])
                command = status.with_name("cmdline").read_bytes()
                if parent == self._process.pid and b"kvplan_engine.server.engine_process" in command:
                    found.append(int(status.parent.name))
        return sorted(found)

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    @property
    def address(self) -> str:
        """host:port"""
        return self.url.removeprefix("http://")

    def counts(self) -> Counts:
        time.sleep(0.3)  # the last request is counted a moment after its last token
        with urlopen(f"{self.url}/metrics") as page:
            families = text_string_to_metric_families(page.read().decode())
            samples = [sample for family in families for sample in family.samples]

        def total(name: str) -> int:
            return int(sum(sample.value for sample in samples if sample.name == f"vllm:{name}_total"))

        names = ("prompt_tokens", "generation_tokens", "request_success", "prefix_cache_hits")
        return Counts(*[total(name) for name in names])

    def post(self, path: str, document: dict[str, Any]) -> Any:
        request = Request(self.url + path, json.dumps(document).encode(), {"Content-Type": "application/json"})
        with urlopen(request) as answer:
            return json.load(answer)


def write_tokenizer(gguf: Path, directory: Path) -> None:
    """The tokenizer in a GGUF as a directory, which clients that make up prompts want."""
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(directory)
    described = directory / "tokenizer_config.json"
    # A name that earlier releases of transformers know, too: clients bring their own.
    named = json.loads(described.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    described.write_text(json.dumps(named), encoding="utf-8")

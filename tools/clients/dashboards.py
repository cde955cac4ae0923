"""The queries in Grafana dashboards, with their variables filled in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.served import MODEL

# What Grafana's variables stand for while a load has just ended; any other is a name or a pattern.
_SPANS = ("__rate_interval", "__range", "__interval")
_VALUES = {**dict.fromkeys(_SPANS, "1m"), "agg_method": "0.99", "model_name": MODEL, "Deployment_id": MODEL}
# Features whose metrics the server leaves out (docs/serve.md).
_ABSENT = (
    "spec_decode",
    "lora",
    "mm_cache",
    "external_prefix_cache",
    "kv_block",
    "kv_offload",
    "nixl",
    "swapped",
    "cpu_cache",
)


@dataclass(frozen=True, slots=True)
class Query:
    text: str

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(re.findall(r"\b(?:vllm:|http_|process_)\w+", self.text)))

    @property
    def is_of_absent_feature(self) -> bool:
        return bool(self.metrics) and all(any(word in name for word in _ABSENT) for name in self.metrics)


def read_dashboards(directory: Path) -> dict[str, list[Query]]:
    """File name -> queries of its panels, each once. SystemExit if there are none."""
    found: dict[str, list[Query]] = {}
    for path in sorted(directory.glob("*.json")):
        texts = dict.fromkeys(_expressions(json.loads(path.read_text(encoding="utf-8"))))
        if texts:
            found[path.name] = [Query(_filled(text)) for text in texts]
    if not found:
        raise SystemExit(f"error: no dashboard in {directory}")
    return found


def _expressions(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        if isinstance(document.get("expr"), str):
            yield document["expr"]
        for value in document.values():
            yield from _expressions(value)
    elif isinstance(document, list):
        for value in document:
            yield from _expressions(value)


def _filled(text: str) -> str:
    return re.sub(r"\$\{?(\w+)(?::\w+)?\}?", lambda found: _VALUES.get(found[1], ".*"), text)

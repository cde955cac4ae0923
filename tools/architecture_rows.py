"""Writes ``profiles/architectures.json`` as it is kept: one row to a line, so that a changed fact is a changed line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parents[1] / "profiles" / "architectures.json"


def table_text(document: Mapping[str, Any]) -> str:
    """Return the text of the table: its head, then one line for each architecture."""
    head = {key: value for key, value in document.items() if key != "architectures"}
    rows = ",\n".join("  " + json.dumps(row) for row in document["architectures"])
    return json.dumps(head, indent=1)[:-2] + f',\n "architectures": [\n{rows}\n ]\n}}\n'


def with_ways(text: str, ways: Mapping[str, str]) -> str:
    """Return the table with how each architecture runs in its class of transformers; others do not run there."""
    document = json.loads(text)
    order = ("transformers", "gguf", "vllm")
    for row in document["architectures"]:
        behind = {key: row.pop(key) for key in order if key in row}
        behind.pop("transformers", None)
        way = ways.get(row["architecture"])
        row.update({} if way is None else {"transformers": way}, **behind)
    return table_text(document)

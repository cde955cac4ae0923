"""A message: a JSON object with a ``type``, on one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

LOG: Final = "log"
"""The type of the one message that no command reads: stderr goes to its ``path`` from now on."""


def encode(message: Mapping[str, object]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message in a line. ValueError if it is none."""
    message = json.loads(line)
    if not isinstance(message, dict) or "type" not in message:
        raise ValueError(f"not a message: {line!r}")
    return message

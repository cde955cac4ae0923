"""The Hugging Face hub without huggingface_hub, which a plain install does not have: files and parameter counts.

Variables of the environment are huggingface_hub's: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE. Every answer is bounded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from kvplan.paths import user_cache_dir

_SECONDS = 10.0
_ABSENT = "EntryNotFound"
_MOST_BYTES = 16 * 1024**2


class HubError(Exception):
    """Why a file cannot be had. ``code``: the hub's X-Error-Code, such as GatedRepo; empty where it was not reached."""

    def __init__(self, code: str = "") -> None:
        super().__init__(code)
        self.code = code


def kept_path(repository: str, name: str) -> Path:
    """Return where the file ``name`` of ``repository`` is kept; it is fetched unless it is there. HubError otherwise.

    One that the repository does not have is remembered beside it.
    """
    path = user_cache_dir() / "hub" / repository.replace("/", "--") / name
    absent = path.with_name(f"{name}.absent")
    if path.is_file():
        return path
    if absent.is_file():
        raise HubError(_ABSENT)
    try:
        text = _fetch(f"{quote(repository)}/resolve/main/{name}")
    except HubError as error:
        if error.code == _ABSENT and path.parent.is_dir():
            absent.touch()
        raise
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return path


def parameter_counts(repository: str) -> Mapping[str, int]:
    """Return the numbers in all safetensors by dtype ("BF16"), as the hub counted them; empty where it did not."""
    try:
        told = json.loads(_fetch(f"api/models/{quote(repository)}")).get("safetensors") or {}
    except (HubError, ValueError, AttributeError, RecursionError):
        return {}
    counts: Any = told.get("parameters") if isinstance(told, dict) else None
    if not isinstance(counts, dict):
        return {}
    return {dtype: count for dtype, count in counts.items() if isinstance(count, int) and count > 0}


def _fetch(path: str) -> bytes:
    if os.environ.get("HF_HUB_OFFLINE", "").casefold() in ("1", "true", "yes", "on"):
        raise HubError
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    request = Request(f"{endpoint}/{path}", headers={"User-Agent": "kvplan"})
    if token := os.environ.get("HF_TOKEN"):
        request.add_unredirected_header("Authorization", f"Bearer {token}")  # not to the host that keeps the files
    try:
        with urlopen(request, timeout=_SECONDS) as answer:
            body: bytes = answer.read(_MOST_BYTES + 1)
    except HTTPError as error:
        raise HubError(error.headers.get("X-Error-Code", "")) from error
    except (OSError, ValueError) as error:
        raise HubError from error
    if len(body) > _MOST_BYTES:
        raise HubError
    return body

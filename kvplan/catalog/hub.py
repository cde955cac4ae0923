"""Models on the Hugging Face hub: the config.json and the safetensors headers of a repository, never its weights.

Nothing from a repository is ever executed. The token is taken where huggingface_hub takes it (HF_TOKEN, or the file
that ``hf auth login`` writes); files are kept in its cache, what was learnt from the headers in kvplan's.

A plain install has no huggingface_hub: ``kept_path`` and ``parameter_counts`` ask the hub without it. Variables of the
environment are huggingface_hub's: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE. Every answer is bounded.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, getproxies, urlopen

from kvplan.catalog.checkpoint.safetensors import read_files
from kvplan.catalog.quantization import beside
from kvplan.catalog.reader import parse_config, read_config
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.spec_of_checkpoint import stored_dtype, widest_dtype, with_checkpoint
from kvplan.errors import KvplanError, UsageError
from kvplan.files import LARGEST_CONFIG_BYTES, read_json, read_text
from kvplan.paths import user_cache_dir

_SECONDS = 10.0
_ABSENT = "EntryNotFound"
_MOST_BYTES = 16 * 1024**2
_REPOSITORY = re.compile(
    r"(?!.*(?:--|\.\.))[A-Za-z0-9][\w.-]{0,95}(?<![.-])/[A-Za-z0-9][\w.-]{0,95}(?<![.-])(?<!\.git)", re.ASCII
)
_CONNECT_SECONDS = 5.0
_HAS_CLIENT = find_spec("huggingface_hub") is not None
"""Where it is missing, ``kept_path`` and ``parameter_counts`` do its work."""
_ELSEWHERE = "pass a directory with the model's config.json, or the file itself"


def is_repository_name(text: str) -> bool:
    """``organisation/name``, as the hub writes it and huggingface_hub takes it."""
    return _REPOSITORY.fullmatch(text) is not None


class UnavailableError(KvplanError):
    """The config of a repository cannot be had: no network, no access, or none in it."""


@dataclass(frozen=True, slots=True)
class StoredCount:
    """What the safetensors headers say: parameters in all tensors, towers and multi-token layers included."""

    num_parameters: int
    dtypes: tuple[str, ...]


def fetch_model(repository: str, *, assumptions: Mapping[str, str] | None = None) -> ModelSpec:
    """The model of a hub repository, with the weights of a checkpoint that lies whole in the hub's cache.

    UnavailableError where its config cannot be had, UsageError where the hub has no such repository.
    """
    path = _fetch(repository, "config.json")
    content = read_text(path, LARGEST_CONFIG_BYTES, hint=_ELSEWHERE)
    config = parse_config(content, where=f"The config.json of {repository}")
    if beside.is_wanted(config):
        config = beside.with_file(config, _fetch_if_there(repository, beside.FILE_NAME))
    source = f"https://huggingface.co/{repository}"
    files = read_files(path.parent)
    cached = files is not None and not files.missing
    counted = None if cached else _stored_count(repository)
    dtype = widest_dtype(counted.dtypes) if counted is not None else stored_dtype(files) if files is not None else None
    spec = read_config(config, model_id=repository, source=source, assumptions=assumptions, stored_dtype=dtype)
    if files is not None and cached:
        return with_checkpoint(spec, files)
    return spec if counted is None else _compared(spec, counted)


def _compared(spec: ModelSpec, counted: StoredCount) -> ModelSpec:
    """A note where headers and formulas differ by more than what is named apart; packed weights differ anyway."""
    extras = sum(extra.num_parameters or 0 for extra in spec.extras)
    known = (spec.num_parameters, spec.num_parameters + extras)
    if spec.quantization is not None or counted.num_parameters in known:
        return spec
    note = (
        f"The checkpoint's headers hold {counted.num_parameters:,} numbers; the formulas give {spec.num_parameters:,}"
    )
    note += f", and {extras:,} in parts named apart." if extras else "."
    return replace(spec, assumptions=(*spec.assumptions, note))


def _fetch_if_there(repository: str, name: str) -> Path | None:
    """Return a file that a repository may have; None where it has none, or the hub cannot be asked."""
    try:
        return _fetch(repository, name)
    except KvplanError:
        return None


def _fetch(repository: str, name: str) -> Path:
    """Return where a file of a repository is kept; it is fetched unless it is there, or is known not to be."""
    if not _HAS_CLIENT:
        try:
            return kept_path(repository, name)
        except HubError as error:
            raise _refusal(repository, error.code) from error
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    cached = try_to_load_from_cache(repository, name)
    if cached is not None:
        if not isinstance(cached, str):
            raise _refusal(repository, "EntryNotFound")
        return Path(cached)
    if not _hub_answers():
        raise _refusal(repository)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        return Path(hf_hub_download(repository, name))
    except GatedRepoError as error:
        raise _refusal(repository, "GatedRepo") from error
    except RepositoryNotFoundError as error:
        raise _refusal(repository, "RepoNotFound") from error
    except OSError as error:
        is_missing = isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError)
        raise _refusal(repository, "EntryNotFound" if is_missing else "") from error


def _refusal(repository: str, code: str = "") -> KvplanError:
    """Return the error for the hub's own code (X-Error-Code); "" where it could not be asked."""
    if code == "GatedRepo":
        hint = "accept its licence on its page and set HF_TOKEN, or " + _ELSEWHERE
        return UnavailableError(f"{repository} is gated, and this token may not read it.", hint=hint)
    if code == "RepoNotFound":
        hint = "check the name; a private model needs HF_TOKEN; or " + _ELSEWHERE
        return UsageError(f"The Hugging Face hub has no model '{repository}'.", hint=hint)
    if code == "EntryNotFound":
        return UnavailableError(f"{repository} has no config.json.", hint=_ELSEWHERE)
    return UnavailableError(
        f"{repository} is not built in, and the Hugging Face Hub is unreachable.",
        hint=f"{_ELSEWHERE}; kvplan models lists the built-in profiles",
    )


def _hub_answers() -> bool:
    """Whether the hub's host can be connected to: without a network, huggingface_hub would retry for half a minute.

    Behind a proxy this cannot be told, so nothing is refused.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if getproxies():
        return True
    address = urlsplit(constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        with socket.create_connection((address.hostname or "", port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


def _stored_count(repository: str) -> StoredCount | None:
    """Parameters by the safetensors headers, from the cache or by range requests; None where there are none."""
    cached = user_cache_dir() / "hub" / (repository.replace("/", "--") + ".json")
    try:
        known = read_json(cached, LARGEST_CONFIG_BYTES)
        return StoredCount(int(known["num_parameters"]), tuple(map(str, known["dtypes"])))
    except (KvplanError, ValueError, OverflowError, KeyError, TypeError):
        pass
    counted = _count_headers(repository)
    if counted is not None:
        try:
            cached.parent.mkdir(parents=True, exist_ok=True)
            cached.write_text(json.dumps({"num_parameters": counted.num_parameters, "dtypes": list(counted.dtypes)}))
        except OSError:
            return counted
    return counted


def _count_headers(repository: str) -> StoredCount | None:
    if not _HAS_CLIENT:
        counts = parameter_counts(repository)
        return StoredCount(sum(counts.values()), tuple(sorted(counts))) if counts else None
    from huggingface_hub import get_safetensors_metadata
    from huggingface_hub.errors import HfHubHTTPError, NotASafetensorsRepoError, SafetensorsParsingError

    try:
        found = get_safetensors_metadata(repository)
    except (NotASafetensorsRepoError, SafetensorsParsingError, HfHubHTTPError, OSError, ValueError):
        return None
    return StoredCount(sum(found.parameter_count.values()), tuple(sorted(found.parameter_count)))


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
        text = _fetch_plainly(f"{quote(repository)}/resolve/main/{name}")
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
        told = json.loads(_fetch_plainly(f"api/models/{quote(repository)}")).get("safetensors") or {}
    except (HubError, ValueError, AttributeError, RecursionError):
        return {}
    counts: Any = told.get("parameters") if isinstance(told, dict) else None
    if not isinstance(counts, dict):
        return {}
    return {dtype: count for dtype, count in counts.items() if isinstance(count, int) and count > 0}


def _fetch_plainly(path: str) -> bytes:
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

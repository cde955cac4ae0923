"""What a sweep's directory may make this machine do: nothing that its user has not asked for here.

A run directory is data, and people pass it on. Yet its manifest names a program to start (``--engine-command``,
``--engine-python``), options of that program, or a server to send the API key to (``--url``). To continue such a sweep
these are given again; or this user has started it here, in this place, and a note of that lies where only this user
can have written it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kvplan.errors import KvplanError
from kvplan.paths import user_state_dir
from kvplan.settings import option_of
from kvplan.sweeps.options import SweepOptions

_ACTING: Final = ("engine_command", "engine_python", "engine_args", "url")
"""The options that start something, say how, or name whom to call."""
_NOTES: Final = "started-sweeps"
_MOST_LINKS_SOUGHT: Final = 100_000


def note_started(options: SweepOptions, run_id: str, directory: Path) -> None:
    """Remember that this user starts the sweep here. Where that cannot be written, a resume will ask."""
    if not _acting(options):
        return
    with suppress(OSError):
        notes = user_state_dir() / _NOTES
        notes.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_private(notes.stat()):
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(notes / _digest(options, run_id, directory), flags, 0o600))


def refuse_unasked(options: SweepOptions, given: Mapping[str, Any], run_id: str, directory: Path) -> None:
    """KvplanError that shows what the directory would run or call, unless the user gave that again or started it here.

    given: the options on the command line, which equal the directory's.
    """
    missing = {name: value for name, value in _acting(options).items() if name not in given}
    if not missing or _is_noted(options, run_id, directory):
        return
    words = [word for name, value in missing.items() for word in _option_words(name, value)]
    what = "call" if tuple(missing) == ("url",) else "run"
    raise KvplanError(
        f"{directory} was not started here, and what it would {what} is only its own word: {shlex.join(words)}.",
        hint="if that is what you want, give these options again beside --resume",
    )


def refuse_links(directory: Path) -> None:
    """KvplanError if something within is a link: what a continued sweep writes would go where the link points."""
    seen = 0
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            seen += 1
            path = Path(folder, name)
            if seen > _MOST_LINKS_SOUGHT or path.is_symlink():
                what = f"{path} is a link" if path.is_symlink() else f"{directory} has too many files"
                raise KvplanError(f"{what}, which no sweep leaves behind.", hint="remove it, or start a new sweep")


def _acting(options: SweepOptions) -> dict[str, Any]:
    return {name: value for name in _ACTING if (value := getattr(options, name))}


def _option_words(name: str, value: Any) -> list[str]:
    if name == "engine_args":
        return [word for text in value for word in ("--engine-arg", text)]
    return [option_of(name), value]


def _digest(options: SweepOptions, run_id: str, directory: Path) -> str:
    """Return a digest of the sweep, its place, and what it runs there."""
    record = [os.fspath(directory.resolve()), run_id, options.engine, _acting(options)]
    return hashlib.sha256(json.dumps(record).encode()).hexdigest()


def _is_noted(options: SweepOptions, run_id: str, directory: Path) -> bool:
    notes = user_state_dir() / _NOTES
    try:
        note = os.stat(notes / _digest(options, run_id, directory), follow_symlinks=False)
        return _is_private(notes.stat()) and stat.S_ISREG(note.st_mode) and _is_private(note)
    except OSError:
        return False


def _is_private(found: os.stat_result) -> bool:
    """Whether it belongs to this user, and nobody else can write to it."""
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

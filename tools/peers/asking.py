"""Runs a probe in the interpreter of a peer and reads its answers."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.errors import UsageError

PROBES = Path(__file__).parent / "probes"
PEERS = {
    "aiconfigurator": "aiconfigurator-core",
    "llm-d-planner": "llm-d-planner",
    "kvfit": "kvfit",
    "hf-mem": "hf-mem",
    "accelerate": "accelerate",
}
"""The peers by name, with the distribution on PyPI that holds each."""

TIMEOUT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """What a peer said to one subject: ``value`` in bytes or sequences (or times), or None and the reason."""

    value: Any
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PeerReply:
    """A probe's document. ``version`` is None where the probe did not come as far as that."""

    version: str | None
    answers: dict[str, PeerAnswer]
    remarks: tuple[str, ...] = ()

    def answer(self, subject: str) -> PeerAnswer:
        return self.answers[subject]


def interpreters(pairs: list[str]) -> dict[str, Path]:
    """``NAME=PATH`` of each peer's Python. UsageError for a name that is not a peer or a path that is not a file."""
    found = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if name not in PEERS or not text:
            raise UsageError(f"'{pair}' does not name a peer.", hint=f"--python NAME=PATH, NAME of {', '.join(PEERS)}")
        path = Path(text)
        if not path.is_file():
            raise UsageError(f"{text} is not an interpreter.", hint="give the python of the peer's environment")
        found[name] = path
    return found


def ask(peer: str, python: Path, question_json: str, subjects: tuple[str, ...]) -> PeerReply:
    """One probe in one process. A probe that dies or hangs is an answer too: the same reason for every subject."""
    try:
        done = subprocess.run(
            [str(python), str(_probe(peer)), question_json],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            env=_environment(),
        )
    except subprocess.TimeoutExpired:
        return _silent(f"no answer within {TIMEOUT_SECONDS} s", subjects)
    document = _last_document(done.stdout)
    if document is None:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return _silent(f"the probe failed: {last}", subjects)
    return _reply(document, subjects, Path(json.loads(question_json)["directory"]))


def _probe(peer: str) -> Path:
    return PROBES / f"ask_{peer.replace('-', '_')}.py"


def _environment() -> dict[str, str]:
    """The caller's, without a path that would make the peer import packages of kvplan's environment."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


def _last_document(output: str) -> dict[str, Any] | None:
    lines = output.strip().splitlines()
    try:
        document = json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        return None
    return document if isinstance(document, dict) and "answers" in document else None


def _reply(document: dict[str, Any], subjects: tuple[str, ...], folder: Path) -> PeerReply:
    """The document as answers; reasons without the temporary folder that the config lies in."""
    answers = {}
    for subject in subjects:
        found = document["answers"].get(subject, {"no_answer": "not asked"})
        reason = found.get("no_answer")
        answers[subject] = PeerAnswer(found.get("value"), reason and reason.replace(str(folder), folder.name))
    return PeerReply(document["version"], answers, tuple(document.get("remarks", ())))


def _silent(reason: str, subjects: tuple[str, ...]) -> PeerReply:
    return PeerReply(None, {subject: PeerAnswer(None, reason) for subject in subjects})

"""Compares kvplan's sizes with those of other capacity planners: where they differ by more than 2 %, who is right, why.

    python tools/compare_planners.py --python kvfit=VENV/bin/python [--python NAME=PATH ...] [--json] [--models A,B]

Each peer stays in an environment of its own, and ``--python`` names its interpreter; a peer that is not given is left
out and named. Nothing is downloaded: a peer gets the published config in a folder, and where it would read the
checkpoint's headers from the Hub, the weights as kvplan counts them. Peers: aiconfigurator (aiconfigurator-core),
llm-d-planner (with its extra ``estimation``), kvfit, hf-mem, accelerate (with transformers and torch). Prints Markdown,
which is kept in docs/peers.md. The exit code is 0 whoever is right.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from kvplan.errors import KvplanError, UsageError  # noqa: E402
from peers.asking import PEERS, ask, interpreters  # noqa: E402
from peers.comparison import (  # noqa: E402
    Compared,
    agreement_table,
    difference_tables,
    differences,
    unanswered_table,
)
from peers.ours import estimate, our_answer, question_of  # noqa: E402
from peers.questions import MODELS, SUBJECTS  # noqa: E402
from peers.speed import PEER, Ratios, speed_ratios, speed_table  # noqa: E402


def compare(model: str, pythons: dict[str, Path], folder: Path) -> Compared:
    """kvplan's answer and every given peer's, one process per peer."""
    found = estimate(model)
    question = question_of(model, found, folder).as_json()
    replies = {peer: ask(peer, python, question, tuple(SUBJECTS)) for peer, python in pythons.items()}
    return Compared(model, our_answer(found), replies)


def document(rows: Sequence[Compared], ratios: Sequence[Ratios]) -> dict[str, Any]:
    """Everything as one JSON document: amounts in bytes and sequences, ratios as [low, high]."""
    return {
        "schema": "kvplan.peers/1",
        "models": [_row_document(row) for row in rows],
        "differences": [
            {
                "subject": each.subject,
                "model": each.model,
                "planner": each.peer,
                "kvplan_says": each.ours,
                "planner_says": each.theirs,
                "right": each.right,
                "right_value": each.truth.value,
                "basis": each.truth.basis,
                "why": each.why,
            }
            for each in differences(rows)
        ],
        "speed_ratios": [_ratio_document(each) for each in ratios],
    }


def _row_document(row: Compared) -> dict[str, Any]:
    answers = {
        peer: {
            "version": reply.version,
            "remarks": list(reply.remarks),
            **{subject: {"value": each.value, "reason": each.reason} for subject, each in reply.answers.items()},
        }
        for peer, reply in row.replies.items()
    }
    ours = {subject: row.ours.value(subject) for subject in SUBJECTS}
    return {"model": row.model, "context_tokens": row.ours.context_tokens, "kvplan": ours, "planners": answers}


def _ratio_document(each: Ratios) -> dict[str, Any]:
    def pairs(ratios: Sequence[Any] | None) -> list[list[float]] | None:
        return None if ratios is None else [[round(ratio.low, 3), round(ratio.high, 3)] for ratio in ratios]

    return {"model": each.model, "decode": pairs(each.decode), "prefill": pairs(each.prefill), "reason": each.reason}


def report(rows: Sequence[Compared], ratios: Sequence[Ratios]) -> list[str]:
    """The Markdown that docs/peers.md keeps."""
    lines = [*agreement_table(rows), "", "## Where they differ", *difference_tables(differences(rows))]
    lines += ["", "## What was not answered", "", *unanswered_table(rows)]
    if ratios:
        lines += ["", f"## Step times: kvplan's range divided by {PEER}'s figure", "", *speed_table(ratios)]
    return lines


def _chosen(text: str | None) -> tuple[str, ...]:
    if text is None:
        return MODELS
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise UsageError(f"{unknown[0]} is not one of the models compared.", hint=f"choose from {', '.join(MODELS)}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH", help="a peer's interpreter")
    parser.add_argument("--models", metavar="A,B", help="compare these models alone")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of Markdown")
    options = parser.parse_args(arguments)
    try:
        pythons, models = interpreters(options.python), _chosen(options.models)
        if not pythons:
            raise UsageError("No planner to compare with.", hint="give the interpreter of one: --python NAME=PATH")
    except KvplanError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return 2
    missing = [name for name in PEERS if name not in pythons]
    if missing:
        print(f"not compared, no --python given: {', '.join(missing)}", file=sys.stderr)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            print(f"asking about {model}", file=sys.stderr)
            rows.append(compare(model, pythons, Path(folder)))
        ratios = speed_ratios(pythons[PEER], Path(folder)) if PEER in pythons else []
    print(json.dumps(document(rows, ratios), indent=1) if options.json else "\n".join(report(rows, ratios)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

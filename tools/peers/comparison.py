"""Which answers differ, who is right, and the tables that people read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvplan.units import GIB
from peers.asking import PeerReply
from peers.judgements import OUR_REASONS, REASONS, TRUTHS, Truth
from peers.ours import OurAnswer
from peers.questions import SUBJECTS, Subject

TOLERANCE = 0.02
"""Figures within 2 % count as the same; whole sequences are the same when they are equal to that."""

UNJUDGED = "not judged yet"


@dataclass(frozen=True, slots=True)
class Compared:
    """One model: kvplan's answer beside the peers'."""

    model: str
    ours: OurAnswer
    replies: Mapping[str, PeerReply]


@dataclass(frozen=True, slots=True)
class Difference:
    """A peer's figure that is more than the tolerance away from kvplan's."""

    subject: Subject
    model: str
    peer: str
    ours: float
    theirs: float
    truth: Truth
    why: str

    @property
    def right(self) -> str:
        """``kvplan``, the peer's name, ``both`` or ``neither``; ``open`` or ``not PEER`` where no figure is certain."""
        if self.truth.value is None:
            return "open" if self.truth.at_most is None else self._within(self.truth.at_most)
        near = {"kvplan": is_same(self.ours, self.truth.value), self.peer: is_same(self.theirs, self.truth.value)}
        if all(near.values()):
            return "both"
        return next((name for name, is_near in near.items() if is_near), "neither")

    def _within(self, at_most: float) -> str:
        too_large = [name for name, value in (("kvplan", self.ours), (self.peer, self.theirs)) if value > at_most]
        return f"not {' nor '.join(too_large)}" if too_large else "open"


def is_same(first: float, second: float) -> bool:
    """Whether two figures are within the tolerance of the larger one."""
    return math.isclose(first, second, rel_tol=TOLERANCE)


def differences(rows: Iterable[Compared]) -> list[Difference]:
    """Every figure that differs, by subject, then in the order of the models and peers."""
    found = [
        _difference(subject, row, peer, answer.value)
        for row in rows
        for peer, reply in row.replies.items()
        for subject in SUBJECTS
        if (answer := reply.answer(subject)).value is not None and not is_same(row.ours.value(subject), answer.value)
    ]
    order = list(SUBJECTS)
    return sorted(found, key=lambda each: order.index(each.subject))


def _difference(subject: Subject, row: Compared, peer: str, theirs: float) -> Difference:
    place = (subject, row.model)
    truth = TRUTHS.get(place, Truth(None, UNJUDGED))
    why = REASONS.get((subject, row.model, peer), UNJUDGED)
    return Difference(subject, row.model, peer, row.ours.value(subject), theirs, truth, why)


def agreement_table(rows: Sequence[Compared]) -> list[str]:
    """One line per peer: figures given and those within the tolerance of kvplan's, by subject."""
    peers = _peers(rows)
    lines = _header(("planner", *SUBJECTS.values()))
    for peer in peers:
        cells = [_agreement([row for row in rows if peer in row.replies], peer, subject) for subject in SUBJECTS]
        lines.append(_line((f"{peer} {_version(rows, peer)}", *cells)))
    return lines


def _agreement(rows: Sequence[Compared], peer: str, subject: Subject) -> str:
    given = [(row.ours.value(subject), row.replies[peer].answer(subject).value) for row in rows]
    values = [(ours, theirs) for ours, theirs in given if theirs is not None]
    if not values:
        return "does not say"
    same = sum(is_same(ours, theirs) for ours, theirs in values)
    return f"{same} of {len(values)} the same; {len(given) - len(values)} not answered"


def difference_tables(found: Sequence[Difference]) -> list[str]:
    """One table per subject, the right figure below each model's name."""
    lines: list[str] = []
    for subject, title in SUBJECTS.items():
        of_subject = [each for each in found if each.subject == subject]
        if not of_subject:
            continue
        lines += ["", f"### {title[0].upper()}{title[1:]}", ""]
        lines += _header(("model", "planner", "says", "kvplan", "right", "why it differs"))
        lines += [_difference_line(each) for each in of_subject]
        lines += ["", "What is right:", ""]
        lines += [_truth_line(subject, model) for model in dict.fromkeys(each.model for each in of_subject)]
    return lines


def _difference_line(each: Difference) -> str:
    ours, theirs = (amount(each.subject, value) for value in (each.ours, each.theirs))
    return _line((each.model, each.peer, theirs, ours, each.right, each.why))


def _truth_line(subject: Subject, model: str) -> str:
    truth = TRUTHS.get((subject, model), Truth(None, UNJUDGED))
    figure = "open" if truth.value is None else amount(subject, truth.value)
    ours = OUR_REASONS.get((subject, model))
    return f"* {model}: {figure}. {truth.basis[0].upper()}{truth.basis[1:]}." + (f" {ours}." if ours else "")


def unanswered_table(rows: Sequence[Compared]) -> list[str]:
    """What a peer refused or failed at though it answers the subject for other models: one line per reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for peer, reply in row.replies.items():
            for subject in _answered_subjects(rows, peer):
                answer = reply.answer(subject)
                if answer.value is None:
                    models = reasons.setdefault((peer, _short(answer.reason or "")), [])
                    models += [] if row.model in models else [row.model]
    lines = _header(("planner", "model", "what it said"))
    return lines + [_line((peer, ", ".join(models), reason)) for (peer, reason), models in reasons.items()]


def _answered_subjects(rows: Sequence[Compared], peer: str) -> list[Subject]:
    replies = [row.replies[peer] for row in rows if peer in row.replies]
    return [subject for subject in SUBJECTS if any(reply.answer(subject).value is not None for reply in replies)]


def amount(subject: Subject, value: float) -> str:
    """GiB for bytes, a count for sequences."""
    return f"{value:,.0f}" if subject == "sequences" else f"{value / GIB:,.3f} GiB"


def _peers(rows: Sequence[Compared]) -> list[str]:
    return list(dict.fromkeys(peer for row in rows for peer in row.replies))


def _version(rows: Sequence[Compared], peer: str) -> str:
    versions = (row.replies[peer].version for row in rows if peer in row.replies)
    return next((version for version in versions if version), "")


def _short(reason: str) -> str:
    """At most 170 characters of the reason, safe in a table's cell."""
    text = reason.replace("|", "/")
    return text if len(text) <= 170 else f"{text[:167]}..."


def _header(names: Sequence[str]) -> list[str]:
    return [_line(names), _line(["---"] * len(names))]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

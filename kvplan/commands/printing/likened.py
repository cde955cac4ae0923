"""Beside a plan that keeps a command's settings: what would serve the load without them."""

from __future__ import annotations

from kvplan.commands.printing.plan_sentences import answer_lines
from kvplan.commands.printing.render import print_sentence, say
from kvplan.planner.search.plan import PlanAnswer


def print_unlike(kept: PlanAnswer, free: PlanAnswer) -> None:
    """The answer of ``free``, below that of ``kept``; one line where both are the same."""
    if not free.deployments:
        return
    say()
    best = list(answer_lines(free, free.deployments[0]))
    if kept.deployments and best == list(answer_lines(kept, kept.deployments[0])):
        print_sentence("Without the command's settings nothing better was found.", indent="", further="  ")
        return
    say("Without the command's settings:")
    for line in best:
        print_sentence(line)

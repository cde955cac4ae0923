"""Which prompts the next step reads, and how far: those that are being read, then those that wait and have room."""

from __future__ import annotations

from kvplan.estimate.speed.queueing.instance import Group, Sequence
from kvplan.estimate.speed.queueing.rules import SchedulingRules

Chunk = tuple[Sequence, int]
"""A sequence, and how many of its tokens a step computes."""


def next_chunks(group: Group, rules: SchedulingRules) -> list[Chunk]:
    """What the next step reads, at most its token budget. Those that are admitted have a seat of ``group`` then."""
    if not group.reading and not group.waiting:
        return []
    budget = rules.max_num_batched_tokens - (0 if rules.prompts_first else rules.rows_per_sequence * group.num_decoding)
    group.compose()
    found: list[Chunk] = []
    for sequence in group.reading:
        number = group.next_chunk(sequence, budget)
        if number > 0:
            group.reserve(sequence, number)
            found.append((sequence, number))
            budget -= number
    while group.waiting and budget > 0 and group.may_admit and group.num_running < rules.max_num_seqs:
        sequence = group.waiting[0]
        group.look_up(sequence)
        missing = sequence.known - sequence.found
        if missing > budget and not rules.chunks_prompts and (found or missing <= rules.max_num_batched_tokens):
            break
        number = group.clipped(sequence, sequence.found, min(missing, budget) if rules.chunks_prompts else missing)
        if not number or not group.has_room(rules, sequence, number):
            break
        group.waiting.popleft()
        group.start(sequence)
        group.reserve(sequence, number)
        found.append((sequence, number))
        budget -= number
    return found

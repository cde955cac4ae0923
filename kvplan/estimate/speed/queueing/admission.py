"""Which prompts the next step reads, and how far: those that are being read, then those that wait and have room."""

from __future__ import annotations

from kvplan.estimate.speed.queueing.instance import Instance, Sequence
from kvplan.estimate.speed.queueing.rules import SchedulingRules

Chunk = tuple[Sequence, int]
"""A sequence, and how many of its tokens a step computes."""


def next_chunks(instance: Instance, rules: SchedulingRules) -> list[Chunk]:
    """What the next step reads, at most its token budget. Those that are admitted have a seat of ``instance`` then."""
    if not instance.reading and not instance.waiting:
        return []
    budget = rules.max_num_batched_tokens - (0 if rules.prompts_first else instance.num_decoding)
    found: list[Chunk] = []
    for sequence in instance.reading:
        number = _chunk(sequence.known - sequence.computed, budget, rules)
        if number > 0:
            found.append((sequence, number))
            budget -= number
    while instance.waiting and budget > 0 and instance.may_admit and instance.num_running < rules.max_num_seqs:
        sequence = instance.waiting[0]
        missing = sequence.known - sequence.found
        if missing > budget and not rules.chunks_prompts and (found or missing <= rules.max_num_batched_tokens):
            break
        number = _chunk(missing, budget, rules) if rules.chunks_prompts else missing
        if not _has_room(instance, rules, sequence, number):
            break
        instance.waiting.popleft()
        sequence.computed = sequence.found
        instance.start(sequence)
        found.append((sequence, number))
        budget -= number
    return found


def _chunk(missing: int, budget: int, rules: SchedulingRules) -> int:
    """Of ``missing`` tokens, those that the next step computes."""
    return int(min(missing, budget, rules.max_chunk_tokens))


def _has_room(instance: Instance, rules: SchedulingRules, sequence: Sequence, num_new: int) -> bool:
    if not instance.num_running:
        return True
    if rules.reserves:
        to_come = rules.reserves * (instance.num_to_come + sequence.num_left)
        return instance.num_held + sequence.known + to_come <= rules.pool_tokens
    missing_of_others = sum(each.known - each.computed for each in instance.reading)
    return instance.num_held + missing_of_others + num_new <= rules.pool_tokens

"""What drafts should have gained, at the acceptance that a trial measured and by the calibrated time of a step.

A sequence's step with d drafts computes and samples 1 + d tokens and reads its KV once. Of a trial with A accepted
drafts among the D tokens that came after the first ones, the sequences took D - A steps, each with the mean number of
drafts:

    gain = D / (D - A) x seconds(b sequences, 1 token each) / (seconds(b sequences, 1 + d tokens each) + passes)

b is the mean number of sequences in a step. Sequences of one step with and without drafts count alike, since the time
of a step is nearly linear in its tokens. Steps with prompts are left out: drafts change nothing of them.

passes: of a drafter with layers, d of them. The first computes the D / (D - A) tokens that a step gives a sequence, a
draft model one more (``kvplan_engine/execution/drafting.py``), and each other one a token. A pass takes what a step of
a model of that size does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.speed.steps.step_time import step_shape
from kvplan.runs.columns import Row
from kvplan.sweeps.forecast.under_load import PreparedTrial


class StepSeconds(Protocol):
    """The time of a step, of means over steps: see StepTimes.seconds."""

    def seconds(
        self, num_tokens: float, num_sequences: float, num_sampled: float, num_kv_tokens: float, num_pairs: float
    ) -> float:
        """One step."""
        ...


@dataclass(frozen=True, slots=True)
class Passes:
    """A drafter's passes. more_rows: of the first one for each sequence, beyond the tokens that the last step gave."""

    clock: StepSeconds
    more_rows: int


def predicted_gain(prepared: PreparedTrial, row: Row) -> Row:
    """The column of a trial that has been served; nothing without drafts, or without a calibrated device."""
    predictor, settings = prepared.predictor, prepared.trial.settings
    if not row.get("num_draft_tokens") or predictor.calibration is None or predictor.is_counted:
        return {}
    plain = replace(settings, num_speculative_tokens=0)
    alone, both = predictor.memory(plain), predictor.memory(settings)
    clock = predictor.step_times(plain, alone)
    drafter = predictor.spec.drafter
    if drafter is None or drafter.model is None:
        return {"pred_speculation_gain": gain_at(clock, row)}
    kv_bytes = both.layout.bytes_per_token - alone.layout.bytes_per_token
    size = element_bytes(predictor.dtype(settings))
    shape = step_shape(drafter.model, element_bytes=size, kv_bytes_per_token=kv_bytes)
    if drafter.shares_head:  # it has no embedding that is only looked up, and the head is not its own
        body = drafter.model.num_active_parameters
        shape = replace(shape, body_parameters=body, body_bytes=body * size)
    passes = Passes(replace(clock, shape=shape), int(not drafter.shares_head))
    return {"pred_speculation_gain": gain_at(clock, row, passes)}


def gain_at(clock: StepSeconds, row: Row, passes: Passes | None = None) -> float | None:
    """How many times as many tokens a second the sequences decode; None where none decoded.

    passes: of a drafter with layers; None for one without.
    """
    completed, num_steps = row.get("completed") or 0, row.get("num_steps") or 0
    num_tokens = (row.get("total_output_tokens") or 0) - completed
    num_taken = num_tokens - (row.get("num_accepted_tokens") or 0)
    if num_taken <= 0 or not num_steps:
        return None
    sequences = max(num_taken / num_steps, 1.0)
    rows = 1 + (row.get("num_draft_tokens") or 0) / num_taken
    context = ((row.get("total_input_tokens") or 0) + (row.get("total_output_tokens") or 0) / 2) / completed
    with_drafts = _seconds(clock, sequences, rows, context)
    if passes is not None:
        with_drafts += _seconds(passes.clock, sequences, num_tokens / num_taken + passes.more_rows, context, 1)
        with_drafts += max(rows - 2, 0.0) * _seconds(passes.clock, sequences, 1, context)
    return num_tokens / num_taken * _seconds(clock, sequences, 1, context) / with_drafts


def _seconds(
    clock: StepSeconds, sequences: float, rows_each: float, context: float, sampled_each: float | None = None
) -> float:
    """One step of so many ``sequences``. sampled_each: of their rows; None for all."""
    rows, held = sequences * rows_each, sequences * context
    sampled = rows if sampled_each is None else sequences * sampled_each
    return clock.seconds(rows, sequences, sampled, held, rows_each * held)

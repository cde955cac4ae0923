"""What drafts should have gained, at the acceptance that a trial measured and by the calibrated time of a step.

A sequence's step with d drafts computes and samples 1 + d tokens and reads its KV once. Of a trial with A accepted
drafts among the D tokens that came after the first ones, the sequences took D - A steps, each with the mean number of
drafts:

    gain = D / (D - A) x seconds(b sequences, 1 token each) / seconds(b sequences, 1 + d tokens each)

b is the mean number of sequences in a step. Sequences of one step with and without drafts count alike, since the time
of a step is nearly linear in its tokens. Steps with prompts are left out: drafts change nothing of them.
"""

from __future__ import annotations

from typing import Protocol

from kvplan.runs.columns import Row
from kvplan.sweeps.forecast.under_load import PreparedTrial


class StepSeconds(Protocol):
    """The time of a step, of means over steps: see StepTimes.seconds."""

    def seconds(
        self, num_tokens: float, num_sequences: float, num_sampled: float, num_kv_tokens: float, num_pairs: float
    ) -> float:
        """One step."""
        ...


def predicted_gain(prepared: PreparedTrial, row: Row) -> Row:
    """The column of a trial that has been served; nothing without drafts, or without a calibrated device."""
    predictor, settings = prepared.predictor, prepared.trial.settings
    if not row.get("num_draft_tokens") or predictor.calibration is None or predictor.is_counted:
        return {}
    clock = predictor.step_times(settings, predictor.memory(settings))
    return {"pred_speculation_gain": gain_at(clock, row)}


def gain_at(clock: StepSeconds, row: Row) -> float | None:
    """How many times as many tokens a second the sequences decode; None where none decoded."""
    completed, num_steps = row.get("completed") or 0, row.get("num_steps") or 0
    num_tokens = (row.get("total_output_tokens") or 0) - completed
    num_taken = num_tokens - (row.get("num_accepted_tokens") or 0)
    if num_taken <= 0 or not num_steps:
        return None
    sequences = max(num_taken / num_steps, 1.0)
    rows = 1 + (row.get("num_draft_tokens") or 0) / num_taken
    context = ((row.get("total_input_tokens") or 0) + (row.get("total_output_tokens") or 0) / 2) / completed
    with_drafts = _seconds(clock, sequences, rows, context)
    return num_tokens / num_taken * _seconds(clock, sequences, 1, context) / with_drafts


def _seconds(clock: StepSeconds, sequences: float, rows_each: float, context: float) -> float:
    rows, held = sequences * rows_each, sequences * context
    return clock.seconds(rows, sequences, rows, held, rows_each * held)

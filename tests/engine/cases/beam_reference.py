"""Beam searches of transformers, and the comparison with the engine's."""

from __future__ import annotations

import pytest
import torch
from small_models import VOCAB_SIZE

from kvplan_engine import BeamSearchParams, BeamSearchSequence

END_TOKENS = tuple(range(0, VOCAB_SIZE, 12))  # as many as make answers of different lengths


def reference(
    model: torch.nn.Module, prompt: list[int], params: BeamSearchParams, end_tokens: tuple[int, ...]
) -> list[tuple[list[int], float]]:
    """Sequences and scores from transformers, without the padding behind their end token."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=params.beam_width,
            num_return_sequences=params.beam_width,
            max_new_tokens=params.max_tokens,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            do_sample=False,
            eos_token_id=list(end_tokens) or None,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        )
    answers = []
    for row, score in zip(out.sequences.tolist(), out.sequences_scores.tolist(), strict=True):
        end = next((i for i in range(len(prompt), len(row)) if row[i] in end_tokens), len(row) - 1)
        answers.append((row[: end + 1], score))
    return answers


def assert_same(sequences: list[BeamSearchSequence], want: list[tuple[list[int], float]], where: str = "") -> None:
    assert [sequence.tokens for sequence in sequences] == [tokens for tokens, _ in want], where
    for sequence, (_, score) in zip(sequences, want, strict=True):
        assert sequence.score == pytest.approx(score, rel=1e-5, abs=1e-4), where

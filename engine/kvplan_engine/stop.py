"""When a sequence ends: end-of-sequence token, stop tokens, stop strings, length."""

from __future__ import annotations

from typing import Any

from kvplan_engine.errors import EngineError
from kvplan_engine.request import FinishReason, Sequence
from kvplan_engine.sampling.params import SamplingParams


class StopChecker:
    """Knows the model's end tokens and, for stop strings, its tokenizer."""

    def __init__(self, eos_token_ids: tuple[int, ...], tokenizer: Any) -> None:
        self._eos = frozenset(eos_token_ids)
        self._tokenizer = tokenizer

    def check_params(self, params: SamplingParams) -> None:
        if params.stop_strings and self._tokenizer is None:
            raise EngineError("stop strings need a tokenizer, and this model has none.", hint="use stop_token_ids")

    def stop_ids(self, params: SamplingParams) -> frozenset[int]:
        """The tokens that end a request with these parameters."""
        if params.ignore_eos and not params.stop_token_ids:
            return frozenset()
        return frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)

    def check(self, sequence: Sequence, max_model_len: int) -> FinishReason | None:
        """Why ``sequence`` ends with its last token, or None."""
        params = sequence.request.params
        num_output = sequence.num_output_tokens
        if num_output >= params.min_tokens:
            if sequence.token_ids[-1] in self.stop_ids(params):
                return FinishReason.STOP
            if params.stop_strings and self._matches(sequence, params):
                return FinishReason.STOP
        if num_output >= params.max_tokens or len(sequence.token_ids) >= max_model_len:
            return FinishReason.LENGTH
        return None

    def _matches(self, sequence: Sequence, params: SamplingParams) -> bool:
        text = self._tokenizer.decode(sequence.output_token_ids, skip_special_tokens=True)
        found = [(text.find(stop), stop) for stop in params.stop_strings if stop in text]
        if found:
            sequence.stop_match = min(found)[1]
        return bool(found)

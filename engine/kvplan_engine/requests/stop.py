"""When a sequence ends: end-of-sequence token, stop tokens, stop strings, length. No torch."""

from __future__ import annotations

from typing import Any

from kvplan_engine.errors import EngineError
from kvplan_engine.requests.detokenizer import Detokenizer
from kvplan_engine.requests.request import Sequence
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.requests.status import FinishReason

_NO_TOKENS: frozenset[int] = frozenset()


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
        end_tokens = _NO_TOKENS if params.ignore_eos else self._eos
        return end_tokens.union(params.stop_token_ids) if params.stop_token_ids else end_tokens

    def check(self, sequence: Sequence, max_model_len: int) -> FinishReason | None:
        """Why ``sequence`` ends with its last token; None if it does not."""
        params = sequence.request.params
        num_output = sequence.num_output_tokens
        may_stop = num_output >= params.min_tokens
        token = sequence.token_ids[-1]
        if may_stop and token in self.stop_ids(params):
            sequence.stop_match = token if token in params.stop_token_ids else None
            return FinishReason.STOP
        # a stop token may first be drawn, and so a stop string first be completed, after min_tokens tokens
        if params.stop is not None and self._completes_stop_string(sequence, num_output > params.min_tokens):
            return FinishReason.STOP
        if num_output >= params.max_tokens or len(sequence.token_ids) >= max_model_len:
            return FinishReason.LENGTH
        return None

    def _completes_stop_string(self, sequence: Sequence, may_stop: bool) -> bool:
        stops = sequence.request.params.stop_strings
        if not stops:
            return False
        detokenizer = sequence.detokenizer
        if detokenizer is None:
            detokenizer = sequence.detokenizer = Detokenizer(self._tokenizer, sequence.request.prompt_token_ids)
        for token in sequence.token_ids[sequence.num_prompt_tokens + detokenizer.num_tokens :]:
            sequence.stop_match = detokenizer.find_stop(detokenizer.add(token), stops, may_stop=may_stop)
        return sequence.stop_match is not None

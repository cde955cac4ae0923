"""The chunks and the answer of /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from kvplan_engine.server.openai.choices import Delta
from kvplan_engine.server.openai.logprobs import ChatLogprobs
from kvplan_engine.server.openai.shapes import AnswerShape, event


class ChatShape(AnswerShape):
    """/v1/chat/completions."""

    chunk_object = "chat.completion.chunk"
    answer_object = "chat.completion"

    def _make_logprobs(self, index: int) -> ChatLogprobs | None:
        number = self.context.options.num_logprobs
        return None if number is None else ChatLogprobs(self.context.tokenizer, number)

    def opening(self) -> bytes:
        """Return for each choice a chunk that says who speaks: it carries no token."""
        chunks = b""
        for index in range(self.context.num_samples):
            choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
            content = {**self._head(self.chunk_object), "choices": [{**choice, "finish_reason": None}]}
            if self.context.options.return_token_ids and index == 0:
                content["prompt_token_ids"] = self.context.prompts[0].token_ids
            chunks += event(content)
        return chunks

    def _chunk_choice(self, delta: Delta, *, begins: bool) -> dict[str, Any]:
        return {
            "index": delta.choice,
            "delta": {"content": delta.text},
            "logprobs": self._logprobs_of(delta.choice, [delta]),
            **self._endings([delta]),
        }

    def _answer_choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(delta.text for delta in deltas), "refusal": None},
            "logprobs": self._logprobs_of(index, deltas),
            **self._endings(deltas),
        }

    def answer(self, deltas: list[list[Delta]], usage: dict[str, Any], metrics: dict[str, Any]) -> dict[str, Any]:
        answer = {**super().answer(deltas, usage, metrics), "prompt_logprobs": self._prompt_logprobs(0)}
        if self.context.options.return_token_ids:
            answer["prompt_token_ids"] = self.context.prompts[0].token_ids
        return answer

"""The chunks and the answer of /v1/completions."""

from __future__ import annotations

from typing import Any

from kvplan_engine.server.openai.choices import Delta
from kvplan_engine.server.openai.logprobs import CompletionLogprobs
from kvplan_engine.server.openai.shapes import AnswerShape


class CompletionShape(AnswerShape):
    """/v1/completions."""

    chunk_object = answer_object = "text_completion"

    def _make_logprobs(self, index: int) -> CompletionLogprobs | None:
        number = self.context.options.num_logprobs
        return None if number is None else CompletionLogprobs(self.context.tokenizer, number)

    def _chunk_choice(self, delta: Delta, *, begins: bool) -> dict[str, Any]:
        options = self.context.options
        choice: dict[str, Any] = {
            "index": delta.choice,
            "text": (self._echo(delta.choice) if begins else "") + self._text([delta]),
            "logprobs": self._shown_logprobs(delta.choice, [delta], begins=begins),
            **self._endings([delta]),
        }
        if options.return_token_ids and begins:
            choice["prompt_token_ids"] = self.context.prompt_of(delta.choice).token_ids
        return choice

    def _answer_choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "text": self._echo(index) + self._text(deltas),
            "logprobs": self._shown_logprobs(index, deltas, begins=True),
            "prompt_logprobs": self._prompt_logprobs(index),
            **self._endings(deltas),
        }
        if self.context.options.return_token_ids:
            choice["prompt_token_ids"] = self.context.prompt_of(index).token_ids
        return choice

    def _shown(self, deltas: list[Delta]) -> list[Delta]:
        """Return those whose tokens are part of the answer."""
        return [] if self.context.options.echo_only else deltas

    def _text(self, deltas: list[Delta]) -> str:
        return "".join(delta.text for delta in self._shown(deltas))

    def _shown_logprobs(self, index: int, deltas: list[Delta], *, begins: bool) -> dict[str, Any] | None:
        """Where the answer begins with the prompt, so do they."""
        options = self.context.options
        echoes = begins and options.echo and options.num_logprobs is not None
        return self._logprobs_of(index, self._shown(deltas), self._reported_prompt(index) if echoes else None)

    def _echo(self, index: int) -> str:
        """The prompt's text, where it is to be repeated."""
        if not self.context.options.echo:
            return ""
        return self.context.prompt_of(index).text or ""

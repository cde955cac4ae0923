"""Conversations as prompts, by the template that comes with a model's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvplan_engine.errors import EngineError

Message = Mapping[str, Any]
Conversation = Sequence[Message]


def conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """One conversation or several as a list. EngineError for anything else."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise EngineError(
            "messages must be a list of messages, or a list of such lists.",
            hint='give [{"role": "user", "content": "Hello"}]',
        )
    listed: list[Any] = [messages] if isinstance(messages[0], Mapping) else list(messages)
    for each in listed:
        is_one = isinstance(each, Sequence) and each and all(isinstance(message, Mapping) for message in each)
        if not is_one or not all(isinstance(message.get("role"), str) for message in each):
            raise EngineError(
                "a conversation must be a list of messages with a role each.",
                hint='give [{"role": "user", "content": "Hello"}]',
            )
    return listed


def chat_prompt(tokenizer: Any, messages: Conversation, **options: Any) -> dict[str, Any]:
    """The prompt of a conversation: its text by the template, and its tokens, to which the tokenizer adds none.

    options: those of transformers' ``apply_chat_template``. EngineError where there is none, or where it refuses.
    """
    if not (options.get("chat_template") or getattr(tokenizer, "chat_template", None)):
        raise EngineError(
            "this model's tokenizer has no chat template.",
            hint="give one as chat_template, or a text to generate()",
        )
    try:
        text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, **options)
    except Exception as problem:  # a template is a program that somebody else wrote
        said = next(iter(str(problem).strip().splitlines()), "") or type(problem).__name__
        raise EngineError(f"the chat template does not take these messages: {said[:300]}") from problem
    return {"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}

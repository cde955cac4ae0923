"""What the API process and the process that renders the chat template say to each other."""

from __future__ import annotations

from typing import Any

import msgspec

from kvplan_engine.server.messages import LENGTH


class TemplateFailed(Exception):
    """The template refuses these messages, or costs too much. The message is one sentence."""


class PromptTooLong(Exception):
    """The prompt has more characters than may be. num_characters: how many."""

    def __init__(self, num_characters: int) -> None:
        super().__init__(num_characters)
        self.num_characters = num_characters


class LoadTemplate(msgspec.Struct):
    """The first message: the template. The answer is a Rendered without a text.

    cpu_seconds: of the processor, for this and for each conversation.
    """

    source: str
    special_tokens: dict[str, str]
    cpu_seconds: float


class Render(msgspec.Struct):
    """A conversation. variables: what the request passes in chat_template_kwargs.

    most_characters: of a prompt that is sent back; of a longer one only the length.
    """

    messages: list[dict[str, Any]]
    add_generation_prompt: bool
    variables: dict[str, Any]
    most_characters: int


class Rendered(msgspec.Struct):
    """The prompt, or the sentence that says why there is none."""

    text: str = ""
    error: str = ""
    num_characters: int = 0


def frame(message: msgspec.Struct) -> bytes:
    """Return the message as it lies on the socket. JSON, because it has integers of any size, as requests do."""
    data = msgspec.json.encode(message)
    return LENGTH.pack(len(data)) + data

"""Server-sent events of an OpenAI-compatible server: bytes -> payloads -> what each says of tokens.

A line may be as long as it likes and may arrive in any pieces; comments (keep-alive) and other fields are left out.
https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kvplan.files import parse_json

DONE: Final = b"[DONE]"


class EventSplitter:
    """Feeds on the bytes of an answer's body and gives the payloads of the events that are complete."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that end within ``data``, in their order."""
        if b"\n" not in data:  # put together only once its end is there: a long line may come byte by byte
            self._rest.append(data)
            return []
        lines = b"".join((*self._rest, data)).split(b"\n")
        self._rest = [lines.pop()]
        # Each of these servers writes an event's data in one line, so a line is an event.
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class PromptDetails(msgspec.Struct):
    """What is said of a prompt's tokens: how many the prefix cache had (vLLM: ``--enable-prompt-tokens-details``)."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Token counts so far."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Delta(msgspec.Struct):
    """A chat chunk's news."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: msgspec.Raw | None = None

    @property
    def carries_output(self) -> bool:
        """vLLM's rule: any text, or an empty one without a role. The role chunk alone carries no token."""
        if self.content or self.reasoning or self.reasoning_content or self.tool_calls:
            return True
        return self.content == "" and self.role is None


class Choice(msgspec.Struct):
    """One of a chunk's choices: ``text`` of completions, ``delta`` of chats."""

    text: str | None = None
    delta: Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    @property
    def carries_output(self) -> bool:
        if self.delta is not None:
            return self.delta.carries_output and not (self.finish_reason is not None and not self.delta.content)
        return bool(self.text) or (self.text is not None and self.finish_reason is None)


class Chunk(msgspec.Struct):
    """The fields of a chunk that are looked at; all others are skipped unread."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_DECODER: Final = msgspec.json.Decoder(Chunk)


def decode_chunk(payload: bytes) -> Chunk:
    """ValueError (msgspec.MsgspecError is one) if the payload is no chunk, or nested deeper than one reads."""
    try:
        return _DECODER.decode(payload)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def error_text(body: bytes) -> str:
    """The message in an error's body, in OpenAI's form, FastAPI's or plain; at most 300 characters of it."""
    try:
        document = parse_json(body)
    except ValueError:
        document = None
    found = _message_in(document)
    text = found if found else body.decode("utf-8", errors="replace")
    return " ".join(text.split())[:300]


def _message_in(document: Any) -> str:
    if isinstance(document, str):
        return document
    if isinstance(document, dict):
        for name in ("error", "message", "detail", "object"):
            if name in document:
                return _message_in(document[name]) or str(document[name])
    return ""

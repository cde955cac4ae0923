"""The bytes of a request to an OpenAI-compatible server."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

from kvplan.metrics.http import ServerAddress

Endpoint = Literal["completions", "chat"]
PATHS: Final[dict[Endpoint, str]] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class RequestForm:
    """What all requests of a load have in common.

    with_continuous_usage: ask for usage in every chunk; servers that refuse unknown fields are asked without.
    ignore_eos: generate as many tokens as asked for, whatever they are.
    """

    address: ServerAddress
    endpoint: Endpoint
    model: str
    api_key: str | None = None
    ignore_eos: bool = True
    with_continuous_usage: bool = True
    temperature: float = 0.0

    def request(self, prompt: str | list[int], num_output_tokens: int, seed: int) -> bytes:
        """The whole request, with headers, ready to be written."""
        body = json.dumps(self.document(prompt, num_output_tokens, seed)).encode()
        return self._head(len(body)) + body

    def document(self, prompt: str | list[int], num_output_tokens: int, seed: int) -> dict[str, Any]:
        """The body. prompt: a text, or for completions token ids.

        Optional fields that a server may not know are left out where they say nothing.
        """
        options: dict[str, Any] = {"include_usage": True}
        if self.with_continuous_usage:
            options["continuous_usage_stats"] = True
        document: dict[str, Any] = {
            "model": self.model,
            "stream": True,
            "stream_options": options,
            "max_tokens": num_output_tokens,
            "temperature": self.temperature,
            "seed": seed,
        }
        if self.ignore_eos:
            document["ignore_eos"] = True
        if self.endpoint == "chat":
            return document | {"messages": [{"role": "user", "content": prompt}]}
        return document | {"prompt": prompt}

    def _head(self, num_bytes: int) -> bytes:
        lines = [
            f"POST {self.address.path}{PATHS[self.endpoint]} HTTP/1.1",
            f"Host: {self.address.host_header}",
            "Accept: text/event-stream",
            "Content-Type: application/json",
            "User-Agent: kvplan",
            f"Content-Length: {num_bytes}",
        ]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

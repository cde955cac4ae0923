"""What all handlers share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from kvplan_engine.requests.request import LoRARequest
from kvplan_engine.server.engine_client.replicas import Replicas
from kvplan_engine.server.http.exchange import Exchange
from kvplan_engine.server.metrics.exposition import Exposition
from kvplan_engine.server.metrics.state import ServerMetrics
from kvplan_engine.server.openai.errors import bad_request, model_not_found
from kvplan_engine.server.openai.parameters import MOST_CONTAINERS, MOST_VALUES, is_decoded_soon, parse_body
from kvplan_engine.server.options import ServerOptions
from kvplan_engine.server.text.rendering import TemplateRenderer
from kvplan_engine.server.text.tokenizer import TextTokenizer


@dataclass(slots=True, eq=False)
class ServerState:
    """One server. is_draining: it ends soon and takes no new requests. created: seconds of the epoch.

    num_open: HTTP requests that are not answered yet. server_load: those of them that generate. adapters: served under
    names of their own.
    """

    options: ServerOptions
    client: Replicas
    metrics: ServerMetrics
    exposition: Exposition
    tokenizer: TextTokenizer | None = None
    template: TemplateRenderer | None = None
    no_template: str = ""
    is_draining: bool = False
    num_open: int = 0
    server_load: int = 0
    adapters: dict[str, LoRARequest] = field(default_factory=dict)
    created: int = field(default_factory=lambda: int(time.time()))

    def read_model(self) -> None:
        """Tokenizer and chat template from what the engine said of its model."""
        model = self.client.model
        if model.tokenizer_json is None:
            self.no_template = model.no_tokenizer
            return
        self.tokenizer = TextTokenizer(model.tokenizer_json)
        if model.chat_template is None:
            self.no_template = "This model has no chat template: use /v1/completions."
            return
        self.template = TemplateRenderer(model.chat_template, model.special_tokens)

    async def close(self) -> None:
        """End what was started beside the engines."""
        if self.template is not None:
            await self.template.close()

    @contextmanager
    def counting_load(self) -> Iterator[None]:
        """Around the whole handling of a request that generates."""
        self.server_load += 1
        try:
            yield
        finally:
            self.server_load -= 1

    def served_name(self, asked: str | None) -> str:
        """The name an answer carries: the one asked for, by default the first. 404 for one that is not served."""
        names = (*self.options.model_names, *self.adapters)
        if asked in (None, ""):
            return names[0]
        if asked not in names:
            raise model_not_found(str(asked), names)
        return str(asked)


# Larger ones are looked through in a thread.
_LARGE_BODY_BYTES = 1 << 18

Body = TypeVar("Body")


async def read_body(state: ServerState, exchange: Exchange, kind: type[Body]) -> Body:
    """400 for what is not JSON of this shape, or would take long to decode; see also ``Exchange.body``."""
    body = await exchange.body(state.options.max_body_bytes)
    most_values = max(MOST_VALUES, 2 * state.client.pool.max_model_len)
    if len(body) > _LARGE_BODY_BYTES:
        is_small = await asyncio.to_thread(is_decoded_soon, body, most_values)
    else:
        is_small = is_decoded_soon(body, most_values)
    if not is_small:
        raise bad_request(
            f"The request body is not valid: it has more than {most_values:,} values, or {MOST_CONTAINERS:,} lists and "
            "objects."
        )
    return parse_body(body, kind)

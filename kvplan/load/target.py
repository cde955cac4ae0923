"""The server that a load is for: reached, asked for its models, and tried with two small requests first.

The probes show that the endpoint streams, how it counts tokens, and how many tokens a prompt of words has.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvplan.errors import KvplanError
from kvplan.load.client.body import PATHS, RequestForm
from kvplan.load.client.connection import Client
from kvplan.load.client.record import RequestRecord, TokenSource
from kvplan.load.traffic.prompts import PLAIN_SCALE, PromptBook, PromptScale
from kvplan.metrics.http import PersistentConnection, ServerAddress
from kvplan.metrics.limits import limits_in
from kvplan.metrics.reading import believable_names

PROBE_SECONDS: Final = 120.0
"""What a server has for its first answers, which may compile kernels."""
_PROBE_WORDS: Final = (16, 80)
_REFUSED: Final = (401, 403)
_BAD_REQUEST: Final = (400, 422)
_MISSING: Final = 404
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class Target:
    """A server that answered. form: how requests to it look. scale: tokens of a prompt of words, as it counts.

    token_source: how it counts answers; None if it does not.
    """

    form: RequestForm
    scale: PromptScale
    token_source: TokenSource | None
    max_model_len: int | None = None


def find_model(address: ServerAddress, api_key: str | None, wanted: str | None) -> tuple[str, int | None]:
    """The model to ask for, and its longest sequence where told. KvplanError for a wrong address or name."""
    with PersistentConnection(address, api_key) as connection:
        answer = connection.get("/v1/models")
    if answer.status in _REFUSED:
        raise refused_key(address)
    document = answer.json() if answer.status == _OK else None
    data = document.get("data") if isinstance(document, dict) else None
    listed = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    listed = [entry for entry in listed if believable_names([entry.get("id")])]
    if not listed:
        if wanted is not None:
            return wanted, None
        raise KvplanError(
            f"{address.url}/v1/models names no model (status {answer.status}).",
            hint="is it an OpenAI-compatible server? Otherwise name the model with --model",
        )
    model = listed[0] if wanted is None else next((entry for entry in listed if entry["id"] == wanted), None)
    if model is None:
        names = ", ".join(entry["id"] for entry in listed[:5])
        raise KvplanError(f"The server at {address.url} has no model '{wanted}'.", hint=f"it serves {names}")
    return model["id"], limits_in({"max_model_len": model.get("max_model_len")}).max_model_len


def refused_key(address: ServerAddress) -> KvplanError:
    return KvplanError(f"The server at {address.url} refuses the API key.", hint="give one with --api-key")


async def probe_target(form: RequestForm, max_model_len: int | None, *, timeout_seconds: float) -> Target:
    """Try the endpoint: twice, with prompts of different length. KvplanError says what it refuses.

    A server that does not know a field is asked again without the ones that not everybody knows.
    """
    few, form = await _probe(form, _PROBE_WORDS[0], timeout_seconds)
    many, form = await _probe(form, _PROBE_WORDS[1], timeout_seconds)
    return Target(form, _scale(few, many), many.token_source, max_model_len)


def _scale(few: RequestRecord, many: RequestRecord) -> PromptScale:
    if few.num_prompt_tokens is None or many.num_prompt_tokens is None:
        return PLAIN_SCALE
    return PromptScale.between((_PROBE_WORDS[0], few.num_prompt_tokens), (_PROBE_WORDS[1], many.num_prompt_tokens))


async def _probe(form: RequestForm, num_words: int, timeout_seconds: float) -> tuple[RequestRecord, RequestForm]:
    """A request that was served, and the form it had."""
    for tried in _simpler_forms(form):
        record = await _ask(tried, num_words, timeout_seconds)
        if record.is_served:
            return record, tried
        if record.status not in _BAD_REQUEST:
            break
    raise _refusal(form, record)


def _simpler_forms(form: RequestForm) -> Sequence[RequestForm]:
    """The form, and without the fields that are vLLM's own."""
    without_usage = replace(form, with_continuous_usage=False)
    return tuple(dict.fromkeys((form, without_usage, replace(without_usage, ignore_eos=False))))


async def _ask(form: RequestForm, num_words: int, timeout_seconds: float) -> RequestRecord:
    now = time.perf_counter()
    record = RequestRecord(0, now, now, num_words, 2)
    # A text of its own for each run: a server's cache of an earlier run must not answer.
    prompt = PromptBook(seed=time.time_ns(), stream_words=num_words).prompt(0, num_words)
    client = Client(form.address, timeout_seconds=timeout_seconds)
    try:
        await client.send(record, form.request(prompt, 2, seed=0))
    finally:
        client.close()
    return record


def _refusal(form: RequestForm, record: RequestRecord) -> KvplanError:
    where = f"{form.address.url}{PATHS[form.endpoint]}"
    if record.status in _REFUSED:
        return refused_key(form.address)
    if record.status == _MISSING:
        other = "chat" if form.endpoint == "completions" else "completions"
        return KvplanError(f"{where} refuses: {record.error}.", hint=f"check --model, or try --endpoint {other}")
    if record.status is None:
        return KvplanError(str(record.error), hint="check that the server is up and the address is right")
    said = str(record.error).rstrip(".")
    hint = "the server's log may say why"
    if "tokenizer" in said:
        hint = "kvplan load sends text: serve a checkpoint with its tokenizer, or measure with kvplan sweep"
    return KvplanError(f"{where} did not serve a small request: {said}.", hint=hint)

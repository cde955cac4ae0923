"""OpenAI's Python client: plain, streamed and asynchronous, and its exceptions."""

from __future__ import annotations

import asyncio
from typing import Any

from clients.findings import Findings
from clients.served import MODEL, Served

_PROMPT = "A cache of keys and values is"
_NUM_TOKENS = 24
_NUM_STREAMS = 16
_ASKED: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": _NUM_TOKENS,
    "temperature": 0,
    "extra_body": {"ignore_eos": True},
}


def check_sdk(server: Served) -> Findings:
    try:
        import openai
    except ImportError:
        return Findings("openai (Python)", missing="it is not installed")
    findings = Findings("openai (Python)", openai.__version__)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
        whole = client.completions.create(prompt=_PROMPT, **_ASKED)
        _check_plain(client, findings, whole.choices[0].text)
        _check_errors(client, findings)
    before = server.counts()
    texts = asyncio.run(_many(server))
    findings.equal(
        f"{_NUM_STREAMS} asynchronous streams of the same prompt: texts", set(texts), {whole.choices[0].text}
    )
    found = server.counts().since(before)
    expected = (_NUM_STREAMS * _NUM_TOKENS, _NUM_STREAMS)
    findings.equal("their tokens and requests, by the server", (found.generation_tokens, found.finished), expected)
    return findings


def _check_plain(client: Any, findings: Findings, whole: str) -> None:
    with client.completions.create(
        prompt=_PROMPT, stream=True, stream_options={"include_usage": True}, **_ASKED
    ) as stream:
        chunks = list(stream)
    parts = [chunk.choices[0].text for chunk in chunks if chunk.choices]
    findings.check("a stream's text is the whole answer's", "".join(parts) == whole, f"{len(parts)} chunks")
    counts = (len(parts), chunks[-1].usage.completion_tokens)
    findings.equal("tokens by chunks and by usage", counts, (_NUM_TOKENS, _NUM_TOKENS))
    chat = client.chat.completions.create(
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        model=MODEL,
        temperature=0,
        max_completion_tokens=32,
        logprobs=True,
        top_logprobs=2,
    )
    content = chat.choices[0].message.content
    findings.check("a chat knows the capital of France", "Paris" in content, f"“{content}”")
    logprobs = chat.choices[0].logprobs.content
    findings.equal("log-probabilities, one for each token", len(logprobs), chat.usage.completion_tokens)
    greedy = all(token.logprob == max(top.logprob for top in token.top_logprobs) for token in logprobs)
    findings.check("the greedy token is the likeliest", greedy, f"{len(logprobs)} tokens")


def _check_errors(client: Any, findings: Findings) -> None:
    import openai

    for what, error, asked in (
        ("an unknown model", openai.NotFoundError, {"model": "another", "prompt": "x"}),
        ("a prompt that is too long", openai.BadRequestError, {"model": MODEL, "prompt": [5] * 100_000}),
        (
            "a field that nobody knows",
            openai.BadRequestError,
            {"model": MODEL, "prompt": "x", "extra_body": {"nap": 1}},
        ),
    ):
        try:
            client.completions.create(**asked)
        except openai.APIStatusError as raised:
            findings.check(f"{what} raises {error.__name__}", isinstance(raised, error), f"“{raised.body['message']}”")
        else:
            findings.check(f"{what} raises {error.__name__}", False, "it was answered")


async def _many(server: Served) -> list[str]:
    import openai

    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any") as client:

        async def text() -> str:
            stream = await client.completions.create(prompt=_PROMPT, stream=True, **_ASKED)
            return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])

        return await asyncio.gather(*(text() for _ in range(_NUM_STREAMS)))

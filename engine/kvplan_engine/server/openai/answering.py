"""Runs a request's prompts through the engine, and gives its answer whole or as a stream."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, Protocol

from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.server.engine_client.generation import Generation, Mailbox, Writer
from kvplan_engine.server.engine_client.replicas import Replicas
from kvplan_engine.server.openai.choices import Choice, Delta, LiveOutput, PlainStream
from kvplan_engine.server.openai.shapes import DONE, AnswerShape
from kvplan_engine.server.text.tokenizer import answer_decoder


def usage(generations: list[Generation], num_completion_tokens: int) -> dict[str, Any]:
    """OpenAI's ``usage``. A prompt counts once, however many samples answer it."""
    num_prompt_tokens = sum(generation.num_prompt_tokens for generation in generations)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(each.num_cached_tokens for each in generations)},
    }


def request_metrics(generations: list[Generation]) -> dict[str, float | None]:
    """vLLM's ``metrics`` of a request, in ms: of its first prompt's first sample, from arrival on."""
    first = generations[0]
    times = first.answers[0]
    result: dict[str, float | None] = {
        "time_to_first_token_ms": None,
        "generation_time_ms": None,
        "queue_time_ms": None,
        "mean_itl_ms": None,
        "tokens_per_second": None,
    }
    if first.scheduled_seconds is not None:
        result["queue_time_ms"] = _ms(first.scheduled_seconds - first.arrival_seconds)
    if times.num_tokens:
        generating = times.last_token - times.first_token
        result["time_to_first_token_ms"] = _ms(times.first_token - first.arrival_seconds)
        result["generation_time_ms"] = _ms(generating)
        if times.num_tokens > 1:
            result["mean_itl_ms"] = _ms(generating / (times.num_tokens - 1))
        elapsed = time.perf_counter() - first.arrival_seconds
        result["tokens_per_second"] = round(times.num_tokens / elapsed, 3)
    return result


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


class Output(Protocol):
    """Where a stream goes. live: the same for what is written without waiting."""

    @property
    def live(self) -> LiveOutput: ...

    async def write(self, data: bytes) -> None:
        """A piece of the stream. Waits while the client does not read."""


class Answering:
    """One HTTP request's prompts in the engine. A context manager: what is unfinished when it is left is aborted.

    Entering it raises EngineDead, or Overloaded when too much is queued; then nothing runs.
    """

    def __init__(
        self, client: Replicas, shape: AnswerShape, params: list[SamplingParams], arrival: float, mailbox: Mailbox
    ) -> None:
        self._client = client
        self._shape = shape
        self._params = params
        self._arrival = arrival
        self._mailbox = mailbox
        self._generations: list[Generation] = []
        shape.generations = self._generations
        self._choices = [self._choice(index) for index in range(len(params) * shape.context.num_samples)]
        self._num_unfinished = len(self._choices)
        self._num_streamed = 0

    def _choice(self, index: int) -> Choice:
        context = self._shape.context
        params = self._params[index // context.num_samples]
        skips = context.options.skip_special_tokens
        decoder = answer_decoder(context.tokenizer, context.prompt_of(index).token_ids, skip_special_tokens=skips)
        return Choice(decoder, context.options, params.min_tokens)

    def __enter__(self) -> Answering:
        try:
            for number, (prompt, params) in enumerate(zip(self._shape.context.prompts, self._params, strict=True)):
                context = self._shape.context
                self._generations.append(
                    self._client.submit(
                        prompt.token_ids,
                        params,
                        self._arrival,
                        self._mailbox,
                        number * params.n,
                        context.lora_request,
                        context.engine,
                        context.cache_salt,
                    )
                )
        except BaseException:
            self._abort()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._abort()

    def _abort(self) -> None:
        for generation in self._generations:
            self._client.abort(generation)

    async def _next(self, writer: Writer | None = None) -> list[Delta]:
        """What the next tokens add, at least one; [] when all choices are complete. writer: see ``Mailbox.take``."""
        choices = self._choices
        while self._num_unfinished:
            events = await self._mailbox.take(writer)
            deltas = [delta for event in events if (delta := choices[event.choice].take(event)) is not None]
            for delta in deltas:
                if delta.finish_reason is not None:
                    self._finish(delta)
            if deltas:
                return deltas
        return []

    def _finish(self, delta: Delta) -> None:
        """A choice is complete; the engine need not go on with it."""
        self._num_unfinished -= 1
        if delta.stopped_early:
            generation = self._generations[delta.choice // self._shape.context.num_samples]
            self._client.end_answer(generation, delta.choice)

    @property
    def _num_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self._choices)

    async def whole(self) -> dict[str, Any]:
        """The answer, when it is complete."""
        gathered: list[list[Delta]] = [[] for _ in self._choices]
        while deltas := await self._next():
            for delta in deltas:
                gathered[delta.choice].append(delta)
        counts = usage(self._generations, self._num_tokens)
        build = partial(self._shape.answer, gathered, counts, request_metrics(self._generations))
        return await asyncio.to_thread(build) if self._shape.context.is_large else build()

    async def stream(self, output: Output) -> None:
        """Write every chunk as its token arrives. Tokens that gathered meanwhile are written at once, a chunk each."""
        shape, options = self._shape, self._shape.context.options
        writer = self._writer(output.live)
        data = shape.opening()
        while deltas := await self._next(None if data else writer):
            await output.write(data + b"".join(map(self._chunk, deltas)))
            data = b""
        ending = DONE
        if options.include_usage:
            counts = usage(self._generations, self._num_tokens)
            ending = shape.usage_chunk(counts, request_metrics(self._generations)) + ending
        await output.write(ending)

    def _writer(self, output: LiveOutput) -> Writer | None:
        """Return a writer for ordinary tokens, if none of them can end a choice."""
        options, plain_parts = self._shape.context.options, self._shape.plain_parts
        if options.stop_strings:
            return None
        if len(plain_parts) == 1 and not options.echo:
            return PlainStream(self._choices[0], *plain_parts[0], output).write
        return partial(self._write_now, output)

    def _write_now(self, output: LiveOutput, choice: int, token: int, is_late: bool) -> bool:
        """Write an ordinary token's chunk; False, and nothing is done, for a client that does not keep up."""
        if not output.is_ready:
            return False
        output.write(self._chunk(Delta(choice, self._choices[choice].add(token), token)))
        return True

    def _chunk(self, delta: Delta) -> bytes:
        self._num_streamed += 1
        is_counted = self._shape.context.options.continuous_usage
        return self._shape.chunk(delta, usage(self._generations, self._num_streamed) if is_counted else None)

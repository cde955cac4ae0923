"""The engine's loop: take what has arrived, run a step, send its frame.

While nothing runs, the process sleeps until a message arrives. A frame also follows messages after which no step is
run, so that the API process always knows the present state of queues and blocks.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Rows

import msgspec

from kvplan_engine.engine import Engine
from kvplan_engine.errors import EngineError
from kvplan_engine.requests.outputs import PlainOutputs, StepOutput
from kvplan_engine.requests.request import Request, Sequence
from kvplan_engine.server.engine_process.loading import COMMANDS, pool_facts
from kvplan_engine.server.messages import (
    Abort,
    Add,
    Begun,
    Carved,
    Command,
    Ended,
    FrameReader,
    PromptLogprobsMessage,
    Refused,
    Reply,
    Stats,
    Step,
    Stop,
    ToEngine,
    TokenLogprobs,
    decode_to_engine,
    frame,
)

# The engine's end of the socket.


_READ_BYTES = 1 << 18


class ApiGone(Exception):
    """The API process closed its end."""


class Channel:
    """Messages from and to the API process. Sending waits until it reads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames = FrameReader()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._waiting = select.poll()
        self._waiting.register(connection, select.POLLIN)

    def wake_by(self, descriptors: Iterable[int]) -> None:
        """Waiting ends, perhaps without a message, when one of ``descriptors`` can be read or is closed."""
        for descriptor in descriptors:
            self._waiting.register(descriptor, select.POLLIN)

    def send(self, message: msgspec.Struct) -> None:
        """ApiGone when nobody reads any more."""
        try:
            self._connection.sendall(frame(message))
        except (BrokenPipeError, ConnectionResetError):
            raise ApiGone from None

    def receive(self, *, wait: bool) -> list[ToEngine]:
        """The messages that have arrived; with ``wait`` there is one, or another reason to wake (``wake_by``).

        ApiGone at the end of the connection.
        """
        messages: list[ToEngine] = []
        if wait:
            self._waiting.poll()
        while self._poll.poll(0):
            try:
                data = self._connection.recv(_READ_BYTES)
            except ConnectionResetError:
                raise ApiGone from None
            if not data:
                raise ApiGone
            messages += map(decode_to_engine, self._frames.feed(data))
        return messages


def end_with(connection: socket.socket) -> None:
    """End this process at once when the API process dies, whatever it is busy with."""

    def watch() -> None:
        poll = select.poll()
        poll.register(connection, select.POLLRDHUP)
        poll.poll()
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


class EngineLoop:
    """Runs ``engine`` for the API process at the other end of ``channel``. tells_answers: see Load."""

    def __init__(self, engine: Engine, channel: Channel, *, tells_answers: bool = False) -> None:
        self._engine = engine
        self._channel = channel
        self._tells_answers = tells_answers
        self._first: dict[str, int] = {}  # by request id: the number of its first answer
        self._unbegun: deque[Request] = deque()  # requests that no step has scheduled yet, in the order of the queue
        self._is_stopped = False

    def run(self) -> None:
        """Until a Stop arrives. ApiGone when the API process is gone; what the engine raises ends the loop."""
        engine, channel = self._engine, self._channel
        if engine.ranks is not None:
            channel.wake_by(engine.ranks.descriptors)
        while True:
            is_busy = engine.has_unfinished_requests()
            for message in channel.receive(wait=not is_busy):
                self._take(message)
            if not is_busy and engine.ranks is not None:
                engine.ranks.check()
            if self._is_stopped:
                break
            if engine.has_unfinished_requests():
                before = engine.stats
                outputs = engine.step()
                channel.send(self._frame(outputs, was_step=engine.stats is not before))
            else:
                channel.send(self._frame([], was_step=False))

    # ---- messages

    def _take(self, message: ToEngine) -> None:
        if isinstance(message, Add):
            self._add(message)
        elif isinstance(message, Abort):
            self._abort(message)
        elif isinstance(message, Command):
            self._channel.send(self._run_command(message))
        elif isinstance(message, Stop):
            self._is_stopped = True

    def _add(self, message: Add) -> None:
        name = str(message.first)
        try:
            request = self._engine.add_request(
                name,
                message.prompt_token_ids,
                message.params,
                lora_request=message.lora_request,
                cache_salt=message.cache_salt,
            )
        except EngineError as problem:
            self._channel.send(Refused(message.first, problem.message, problem.hint))
            return
        self._first[name] = message.first
        self._unbegun.append(request)

    def _abort(self, message: Abort) -> None:
        name = str(message.first)
        if self._engine.abort(name, message.index):
            self._first.pop(name, None)

    def _run_command(self, command: Command) -> Reply:
        scheduler = self._engine.scheduler
        try:
            return Reply(command.number, COMMANDS[command.name](self._engine, **command.arguments))
        except EngineError as problem:
            return Reply(command.number, error=problem.message, hint=problem.hint)
        finally:
            if self._engine.has_pool and self._engine.scheduler is not scheduler:
                self._channel.send(Carved(pool_facts(self._engine)))

    # ---- frames

    def _frame(self, outputs: Rows[StepOutput], *, was_step: bool) -> Step:
        begun = self._newly_begun()
        logprobs: list[TokenLogprobs] = []
        if isinstance(outputs, PlainOutputs):
            answers = [self._number(sequence) for sequence in outputs.sequences]
            tokens = outputs.token_ids
            ending = [(outputs.sequences[row], reason) for row, reason in outputs.reasons.items()]
        else:
            answers = [self._number(output.sequence) for output in outputs for _ in output.new_token_ids]
            tokens = [token for output in outputs for token in output.new_token_ids]
            ending = [(each.sequence, each.finish_reason) for each in outputs if each.finish_reason]
            for output in outputs:
                self._send_prompt_logprobs(output.sequence)
            logprobs = [
                TokenLogprobs(self._number(output.sequence), alternatives[token], alternatives)
                for output in outputs
                if output.sequence.request.params.logprobs is not None
                for token, alternatives in _described(output)
            ]
        ended = [self._ended(sequence, reason) for sequence, reason in ending]
        for sequence, _ in ending:  # siblings may end in one step
            if sequence.request.is_finished:
                self._first.pop(sequence.request.request_id, None)
        stats = self._stats() if was_step else self._stats_between_steps()
        return Step(time.perf_counter(), answers, tokens, stats, was_step, begun, ended, logprobs)

    def _send_prompt_logprobs(self, sequence: Sequence) -> None:
        """Once, as the first sample of a request gets its first token."""
        gathered = sequence.request.prompt_logprobs
        if gathered is None or sequence.index or sequence.num_output_tokens > 1:
            return
        message = PromptLogprobsMessage(self._number(sequence), [], [], [])
        for token in gathered.tokens:
            message.logprobs.append(token.logprob)
            message.ranks.append(token.rank)
            message.tops.append(token.top)
        self._channel.send(message)

    def _number(self, sequence: Sequence) -> int:
        """The number of the answer that ``sequence`` is."""
        return self._first[sequence.request.request_id] + sequence.index

    def _ended(self, sequence: Sequence, reason: str) -> Ended:
        request, match = sequence.request, sequence.stop_match
        stop_token = match if isinstance(match, int) else None
        token_ids = sequence.output_token_ids if self._tells_answers else []
        return Ended(self._number(sequence), reason, stop_token, request.num_preemptions, token_ids)

    def _newly_begun(self) -> list[Begun]:
        """Requests that have left the waiting queue; those that were aborted before are forgotten."""
        begun: list[Begun] = []
        unbegun = self._unbegun
        while unbegun:
            first, seconds = self._first.get(unbegun[0].request_id), unbegun[0].first_scheduled_seconds
            if first is not None and seconds is None:
                break
            request = unbegun.popleft()
            if first is not None and seconds is not None:
                begun.append(Begun(first, seconds, request.num_cached_tokens))
        return begun

    def _stats(self) -> Stats:
        stats = self._stats_between_steps()
        last = self._engine.stats
        stats.num_scheduled_tokens = last.num_scheduled_tokens
        stats.step_seconds = last.step_seconds
        if stats.num_running:
            stats.internal_fragmentation_bytes = last.internal_fragmentation_bytes
        return stats

    def _stats_between_steps(self) -> Stats:
        scheduler = self._engine.scheduler
        pool, cache = scheduler.pool, scheduler.prefix_cache
        drafts = self._engine.draft_counts
        return Stats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_swapped=len(scheduler.swapped),
            num_used_blocks=pool.num_used_blocks,
            num_free_blocks=pool.num_free_blocks,
            num_free_cached_blocks=pool.num_free_cached_blocks,
            num_preemptions=scheduler.num_preemptions,
            num_swaps=scheduler.num_swaps,
            recomputed_tokens=scheduler.num_recomputed_tokens,
            num_blocked_admissions=scheduler.num_blocked_admissions,
            prefix_cache_queries=cache.num_queried_tokens,
            prefix_cache_hits=cache.num_hit_tokens,
            num_drafts=drafts.num_drafts,
            num_draft_tokens=drafts.num_draft_tokens,
            num_accepted_tokens=drafts.num_accepted_tokens,
            accepted_per_position=drafts.accepted_per_position,
        )


def _described(output: StepOutput) -> Iterator[tuple[int, dict[int, float]]]:
    """Each of its new tokens with the log-probabilities of its alternatives."""
    tokens = output.new_token_ids
    return zip(tokens, output.sequence.logprobs[-len(tokens) :], strict=True)

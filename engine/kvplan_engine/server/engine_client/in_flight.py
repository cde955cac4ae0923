"""The requests that the engine has, and what its steps do to them: tokens to mailboxes, times to the metrics."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import Any

from kvplan_engine.errors import EngineError
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.server.engine_client.generation import Answer, Generation, Mailbox, TokenEvent
from kvplan_engine.server.engine_client.routing import EngineLoad, Route, Router
from kvplan_engine.server.messages import Ended, PoolFacts, PromptLogprobsMessage, Reply, Step, TokenLogprobs
from kvplan_engine.server.metrics.state import AdaptersInFlight, EngineMetrics, FinishedAnswer

# How many requests may queue: those beyond are refused at once, so that a client can go elsewhere.


class Overloaded(Exception):
    """Too much is queued. reason: vLLM's name of the limit, the label of its metric. The message is one sentence."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class AdmissionQueue:
    """Counts requests, and their prompt tokens, from their arrival until a step first schedules them."""

    max_requests: int | None = None
    max_tokens: int | None = None
    num_requests: int = 0
    num_tokens: int = 0

    def enter(self, num_prompt_tokens: int) -> None:
        """Overloaded when a limit is reached."""
        if self.max_requests is not None and self.num_requests >= self.max_requests:
            raise Overloaded(
                f"The engine is busy: {self.num_requests:,} requests are queued, the most that may be.",
                "max_num_queued_reqs",
            )
        num_tokens = self.num_tokens + num_prompt_tokens
        if self.max_tokens is not None and self.num_requests and num_tokens > self.max_tokens:
            raise Overloaded(
                f"The engine is busy: {num_tokens:,} prompt tokens would be queued, of {self.max_tokens:,} allowed.",
                "max_num_queued_tokens",
            )
        self.num_requests += 1
        self.num_tokens += num_prompt_tokens

    def leave(self, num_prompt_tokens: int) -> None:
        self.num_requests -= 1
        self.num_tokens -= num_prompt_tokens


class CommandsInFlight:
    """One future for each command, by its number, for the coroutine that awaits what it returns."""

    def __init__(self) -> None:
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()

    def next_number(self) -> int:
        """The number of a new command."""
        return next(self._numbers)

    def add(self, number: int) -> asyncio.Future[Any]:
        """Where the value of command ``number`` will be. EngineError there when it fails."""
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        return reply

    def take(self, message: Reply) -> None:
        reply = self._replies.pop(message.number)
        if reply.done():
            return
        if message.error is None:
            reply.set_result(message.value)
        else:
            reply.set_exception(EngineError(message.error, hint=message.hint))

    def fail(self, error: Exception) -> None:
        """No reply will come any more: all that wait are told ``error``."""
        for reply in self._replies.values():
            if not reply.done():  # whoever waited may have been cancelled
                reply.set_exception(error)
        self._replies.clear()


class RequestsInFlight:
    """Answers that are not finished, by number; a request's answers have numbers one after the other.

    ``idle`` is set while there is none.
    """

    def __init__(self, metrics: EngineMetrics, queue: AdmissionQueue) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self._metrics = metrics
        self._queue = queue
        self._answers: dict[int, Answer] = {}  # by number
        self._generations: dict[int, Generation] = {}  # by the number of their first answer
        self._next_number = 0
        self._num_queued_sequences = 0
        self._queued_tokens = 0
        self.router: Router | None = None  # is told of complete answers

    @property
    def generations(self) -> list[Generation]:
        return list(self._generations.values())

    def load(self, pool: PoolFacts) -> EngineLoad:
        """What the engine with this pool has to do now."""
        return EngineLoad(
            num_sequences=len(self._answers),
            num_queued_sequences=self._num_queued_sequences,
            queued_tokens=self._queued_tokens,
            num_seats=pool.max_num_seqs,
            free_tokens=self._metrics.stats.num_free_blocks * pool.block_size,
        )

    def adapters(self) -> AdaptersInFlight:
        """Which adapters have requests now."""
        names: tuple[set[str], set[str]] = (set(), set())
        for generation in self._generations.values():
            if generation.adapter is not None:
                names[generation.scheduled_seconds is None].add(generation.adapter)
        return AdaptersInFlight(*(tuple(sorted(each)) for each in names))

    def add(
        self,
        num_prompt_tokens: int,
        params: SamplingParams,
        arrival: float,
        mailbox: Mailbox,
        first_choice: int,
        adapter: str | None,
        route: Route,
    ) -> Generation:
        """A new request with the next numbers. Overloaded when too much is queued."""
        self._queue.enter(num_prompt_tokens)
        self._num_queued_sequences += params.n
        self._queued_tokens += route.num_new_tokens
        first = self._next_number
        self._next_number += params.n
        generation = Generation(first, num_prompt_tokens, params, arrival, mailbox, first_choice, adapter, route)
        self._generations[first] = generation
        self._answers.update(enumerate(generation.answers, first))
        self.idle.clear()
        return generation

    def find(self, first: int) -> Generation | None:
        """The generation whose first answer has this number; None when it has been aborted meanwhile."""
        return self._generations.get(first)

    def end_answer(self, generation: Generation, index: int) -> bool:
        """Answer ``index`` of ``generation`` stops here. False when it had ended already."""
        number = generation.first + index
        if number not in self._answers:
            return False
        self._finish(generation.answers[index], number, "stop", 0)
        return True

    def take_prompt_logprobs(self, message: PromptLogprobsMessage) -> None:
        if message.first in self._generations:  # not aborted meanwhile
            self._generations[message.first].prompt_logprobs = message

    def take_step(self, step: Step, *, is_late: bool) -> None:
        """The tokens of ``step`` go to their mailboxes. is_late: the next step's are here, too."""
        self._metrics.count_step(step)
        for begun in step.begun:
            generation = self._generations.get(begun.first)
            if generation is not None and generation.scheduled_seconds is None:
                self._begin(generation, begun.seconds, begun.num_cached_tokens)
        ended = {each.answer: each for each in step.ended}
        last = {number: place for place, number in enumerate(step.answers)} if ended else {}
        logprobs: dict[int, deque[TokenLogprobs]] = {}
        for each in step.logprobs:
            logprobs.setdefault(each.answer, deque()).append(each)
        answers = [self._answers.get(number) for number in step.answers]  # None: aborted while the step ran
        self._note_times(answers, step.seconds)
        for place, (number, answer, token) in enumerate(zip(step.answers, answers, step.tokens, strict=True)):
            if answer is None:
                continue
            end = ended.get(number) if last.get(number) == place else None
            if end is not None or number in logprobs:
                self._put(answer, number, token, end, logprobs[number].popleft() if number in logprobs else None)
            else:
                answer.mailbox.put_ordinary(answer.choice, token, is_late)

    def _put(self, answer: Answer, number: int, token: int, end: Ended | None, logprobs: TokenLogprobs | None) -> None:
        if end is None:
            answer.mailbox.put(TokenEvent(answer.choice, token, logprobs=logprobs))
            return
        if self.router is not None:
            self.router.answered(self._generations[answer.first].route, end.token_ids)
        self._finish(answer, number, end.reason, end.num_preemptions)
        answer.mailbox.put(TokenEvent(answer.choice, token, end.reason, end.stop_token, logprobs))

    def _begin(self, generation: Generation, seconds: float, num_cached_tokens: int) -> None:
        generation.scheduled_seconds = seconds
        generation.num_cached_tokens = num_cached_tokens
        self._leave_queue(generation)
        self._metrics.count_prompt(generation.num_prompt_tokens, num_cached_tokens)

    def _leave_queue(self, generation: Generation) -> None:
        self._queue.leave(generation.num_prompt_tokens)
        self._num_queued_sequences -= generation.params.n
        self._queued_tokens -= generation.route.num_new_tokens

    def _note_times(self, answers: list[Answer | None], seconds: float) -> None:
        """Each of ``answers`` got a token at ``seconds``. Some got several: as in vLLM no time passes between these."""
        since: dict[float, int] = {}  # by the time of the token before: nearly all had it in the same step
        for answer in answers:
            if answer is None:
                continue
            if answer.num_tokens and answer.last_token == seconds:
                pass  # it came with the one before
            elif answer.num_tokens:
                since[answer.last_token] = since.get(answer.last_token, 0) + 1
            else:
                answer.first_token = seconds
                arrival = self._generations[answer.first].arrival_seconds
                self._metrics.time_to_first_token.observe(seconds - arrival)
            answer.last_token = seconds
            answer.num_tokens += 1
        for before, times in since.items():
            self._metrics.inter_token_latency.observe(seconds - before, times)

    def _finish(self, answer: Answer, number: int, reason: str, num_preemptions: int) -> None:
        """Answer ``number`` is complete: no token of it is taken any more."""
        generation = self._generations[answer.first]
        del self._answers[number]
        generation.num_unfinished -= 1
        if not generation.num_unfinished:
            del self._generations[answer.first]
            self._metrics.count_request([each.num_tokens for each in generation.answers])
        if not self._generations:
            self.idle.set()
        self._metrics.count_answer(
            FinishedAnswer(
                reason=reason,
                arrival=generation.arrival_seconds,
                finished=time.perf_counter(),
                scheduled=generation.scheduled_seconds,
                first_token=answer.first_token if answer.num_tokens else None,
                last_token=answer.last_token,
                num_prompt_tokens=generation.num_prompt_tokens,
                num_cached_tokens=generation.num_cached_tokens,
                num_generated_tokens=answer.num_tokens,
                num_preemptions=num_preemptions,
                max_tokens=generation.params.max_tokens,
            )
        )

    def finish_all(self, generation: Generation, reason: str) -> None:
        """All that is unfinished of ``generation`` ends for ``reason``."""
        if generation.scheduled_seconds is None:
            self._leave_queue(generation)
        for number, answer in enumerate(generation.answers, generation.first):
            if number in self._answers:
                self._finish(answer, number, reason, 0)

"""Requests on their way to the engine: when clients send them, and when the server's front end hands them over."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Iterator
from typing import Final

from kvplan.estimate.speed.queueing.figures import PlayedRequest
from kvplan.estimate.speed.queueing.front_end import FrontEnd
from kvplan.estimate.speed.queueing.instance import Sequence
from kvplan.estimate.speed.queueing.loads import PlayedLoad, Think
from kvplan.estimate.speed.queueing.prefix_cache import Cached, Chat

NEVER: Final = math.inf
_REQUEST_SHARE: Final = 1 / 4
"""Of the event loop's time that requests have while it is behind with tokens: assumed. With none, a server that cannot
stream quite as fast as its engine decodes would be handed requests in waves; with half, a burst of short answers runs
too many at once."""

_LONG_AGO: Final = 10
"""Requests for each prefix after which next to none was not used again."""


class Arrivals:
    """requests: all that were sent, in this order.

    The front end is an event loop, or several that share all requests evenly and are as busy. It parses all requests
    that were sent at one moment before it turns to anything else, and hands them over one after another, between the
    tokens that it streams: tokens first, unless it cannot stream them as fast as the engine decodes.
    """

    def __init__(self, load: PlayedLoad, front_end: FrontEnd) -> None:
        self._load, self._front_end = load, front_end
        self._in_flight_limit = load.max_concurrency or load.num_requests
        self._num_ended = 0
        self._sent_together: deque[Sequence] = deque()
        self._parsed: deque[tuple[float, Sequence]] = deque()
        self._handed: deque[tuple[float, Sequence]] = deque()
        self._freed: deque[float] = deque()
        self._busy_until = 0.0
        self._last_turn = -math.inf
        self._request_seconds = front_end.request_seconds / front_end.servers
        self._until_handed = front_end.request_seconds + front_end.away_seconds
        self._step_seconds = 0.0
        self._pauses = iter(()) if load.think is None else load.think.pauses(load.seed)
        self._returning: list[tuple[float, int, Chat | None]] = []
        self._rng = random.Random(load.seed)
        self._num_new = self._num_chats = self._num_returned = 0
        self.requests: list[PlayedRequest] = []

    def begin(self) -> None:
        """Users who do not think yet and have no request in progress send one now; others are in the midst of pauses,
        which have no memory."""
        think = self._load.think
        if think is not None:
            busy = min(self._load.num_warmups, think.num_users)
            for _ in range(busy - len(self.requests)):
                self._return(0.0, self._chat_under_way())
            for _ in range(self._num_thinking(think) - busy):
                self._return(next(self._pauses), self._chat_under_way(goes_on=not think.num_users))

    def _num_thinking(self, think: Think) -> int:
        """Users, or those whose chats go on where chats begin at a rate."""
        sharing, rate = self._load.sharing, self._load.requests_per_second
        if rate is None or sharing is None:
            return think.num_users
        return round(rate * (sharing.turns - 1) * think.seconds)

    def _return(self, moment: float, chat: Chat | None) -> None:
        heapq.heappush(self._returning, (moment, self._num_returned, chat))
        self._num_returned += 1

    def _chat_under_way(self, *, goes_on: bool = False) -> Chat | None:
        """Return the chat of somebody who was there before; None where nobody was, or the next request begins one."""
        sharing = self._load.sharing
        chat = self._new_chat() if self._load.num_running else None
        if chat is None or sharing is None:
            return None
        chat.turn = self._rng.randrange(int(goes_on), sharing.turns)
        chat.known += chat.turn * round(self._load.prompts.mean + self._load.answers.mean)
        return chat

    def _new_chat(self) -> Chat | None:
        sharing = self._load.sharing
        if sharing is None:
            return None
        self._num_chats += 1
        return Chat(self._num_chats, self._rng.randrange(sharing.num_prefixes), 0, sharing.prefix_tokens)

    def past(self, group: int, num_groups: int) -> Iterator[tuple[Chat, int, bool]]:
        """Requests that ended before the first in one of the groups, the last of them first: as for
        ``PrefixCache.let_go_before``."""
        sharing = self._load.sharing
        assert sharing is not None, "asked for where there is a cache"
        chats = [chat for _, _, chat in self._returning if chat is not None and chat.turn]
        thinking = [chat for chat in chats if chat.number % num_groups == group]
        turn = round(self._load.prompts.mean + self._load.answers.mean)
        for _ in range(_LONG_AGO * (sharing.num_prefixes + len(thinking) + 1)):
            ends = not thinking or self._rng.random() * sharing.turns < 1
            chat = self._new_chat() if ends else self._rng.choice(thinking)
            assert chat is not None
            yield chat, chat.known + (turn * sharing.turns if ends else 0), not ends

    def send_running(self) -> Sequence:
        """The next request, sent at the beginning and past the front end."""
        self._num_new += 1
        return self._sequence(0.0, self._chat_under_way() or self._new_chat())

    def send(self, now: float) -> None:
        """Clients send what is ready at ``now``."""
        while (sent := self._next_sending()) <= now:
            number = len(self.requests)
            sequence = self._sequence(sent, self._take_next(sent))
            cached = self._load.cached_tokens if number else self._load.first_cached_tokens
            sequence.found = min(cached, sequence.known - 1)
            self._busy_until = max(self._busy_until, sent) + self._front_end.parsing_seconds / self._front_end.servers
            self._sent_together.append(sequence)
            if self._next_sending() != sent:
                while self._sent_together:
                    self._parsed.append((self._busy_until, self._sent_together.popleft()))

    def _take_next(self, sent: float) -> Chat | None:
        """What the request that is due then goes on with, or a new chat."""
        if self._returning and self._returning[0][0] == sent:
            return heapq.heappop(self._returning)[2] or self._new_chat()
        if self._is_held_back(self._num_new):
            self._freed.popleft()
        self._num_new += 1
        return self._new_chat()

    def _sequence(self, sent: float, chat: Chat | None) -> Sequence:
        number = len(self.requests)
        prompt, answer = self._load.lengths[number]
        cached = None
        if chat is not None:
            prompt, cached = prompt + chat.known, Cached(chat)
        request = PlayedRequest(prompt, answer, sent)
        self.requests.append(request)
        return Sequence(request, number, prompt, num_left=answer, cached=cached)

    def take(self, until: float) -> list[Sequence]:
        """What the front end had handed over by then."""
        if self._parsed:
            self._hand_over(until)
        found: list[Sequence] = []
        while self._handed and self._handed[0][0] <= until:
            found.append(self._handed.popleft()[1])
        return found

    def _hand_over(self, until: float) -> None:
        """Turn to those that were parsed before ``until``."""
        while self._parsed and (begun := self._turn()) <= until:
            self._last_turn = begun
            self._busy_until = max(self._busy_until, begun) + self._request_seconds
            self._handed.append((begun + self._until_handed, self._parsed.popleft()[1]))

    def _turn(self) -> float:
        """When the event loop turns to the next of those that were parsed: when it has streamed all tokens.

        Where it is more than two steps behind with these, requests have their share of its time.
        """
        parsed = self._parsed[0][0]
        behind = self._busy_until - 2 * self._step_seconds - self._request_seconds
        shared = max(parsed, self._last_turn + self._request_seconds / _REQUEST_SHARE)
        return shared if shared < behind else max(parsed, self._busy_until)

    def stream(self, first_step: float, last_step: float, num_steps: int, num_tokens: float) -> float:
        """When clients have the last step's tokens: of ``num_steps`` steps with ``num_tokens`` each, the first and the
        last of which end at these moments."""
        if self._parsed:
            self._hand_over(first_step)
        seconds = self._front_end.token_seconds * num_tokens / self._front_end.servers
        self._step_seconds = seconds
        begun = max(self._busy_until, first_step)
        self._busy_until = max(begun + num_steps * seconds, last_step + seconds)
        return self._busy_until

    def note_end(self, now: float, sequence: Sequence) -> None:
        """A client has the last token of ``sequence``: it may send another request."""
        self._num_ended += 1
        think, chat = self._load.think, None
        if sequence.cached is not None and self._load.sharing is not None:
            request, chat = sequence.request, sequence.cached.chat
            chat.turn, chat.known = chat.turn + 1, request.num_prompt_tokens + request.num_output_tokens
            chat = chat if chat.turn < self._load.sharing.turns else None
        if think is None:
            self._freed.append(now)
        elif think.num_users or chat is not None:
            self._return(now + next(self._pauses), chat)

    def next_event(self) -> float:
        """When a client sends the next request, or the engine is handed one."""
        return min(self.next_handing_over(), self._next_sending())

    def next_handing_over(self) -> float:
        """When the engine is handed the next of those that were sent."""
        if self._handed:
            return self._handed[0][0]
        return self._turn() + self._until_handed if self._parsed else NEVER

    def _is_held_back(self, number: int) -> bool:
        """The first of those that may be in flight are sent when they are ready, others when one has ended."""
        return number >= self._in_flight_limit

    def _next_sending(self) -> float:
        """When the next request is sent; never where none is left, or as many are in flight as may be."""
        number = len(self.requests)
        if number >= self._load.num_requests or number - self._num_ended >= self._in_flight_limit:
            return NEVER
        returning = self._returning[0][0] if self._returning else NEVER
        if self._load.think is not None and self._load.think.num_users:
            return returning
        ready = self._load.arrivals[self._num_new]
        if self._is_held_back(self._num_new):
            ready = max(ready, self._freed[0])
        return min(ready, returning)

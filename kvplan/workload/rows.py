"""What a record of a request file asks for: one request, or those of a whole conversation.

A chat's turns have all earlier ones in their prompts, with the answers that the file gives them (or as many tokens,
where it gives only their number). So every prompt of a chat is the beginning of one and the same text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from kvplan.workload.columns import Columns, ColumnsSeen
from kvplan.workload.lengths import LONGEST
from kvplan.workload.texts import (
    TEXT_BLOCK_TOKENS,
    block_ids_of,
    block_ids_of_tokens,
    has_other_parts,
    num_tokens,
    text_of,
)
from kvplan.workload.times import TimeUnit, read_time

_ANSWERS: Final = ("completion", "response", "answer", "output", "output_text", "chosen")
_PROMPTS: Final = ("prompt", "text_input", "text", "texts", "question", "instruction", "input")
_CONVERSATIONS: Final = ("conversations", "conversation", "items", "turns", "messages")
_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens", "output_tokens", "output_length")
_OF_MODEL: Final = ("assistant", "gpt", "chatgpt", "bing", "bard", "model")
_NUMBER: Final = re.compile(r"\d+")
_LARGEST_ID: Final = (1 << 64) - 1
_MOST_NAMES: Final = 150


class MissingColumn(ValueError):
    """A record that says nothing of the prompt's length, or of the answer's."""

    def __init__(self, wanted: str, fields: Mapping[str, Any]) -> None:
        names = ", ".join(map(str, fields))
        shown = names if len(names) <= _MOST_NAMES else f"{names[:_MOST_NAMES]}..."
        super().__init__(f"has no '{wanted}'; it has {shown or 'nothing'}")


class RequestRow(NamedTuple):
    """A request as the file has it. time: in the file's unit, None where it has none.

    block_ids: of ``block_tokens`` each (None: to be found out), of the prompt from its first token on. chat: its
    number, where the prompt is the beginning of that chat's text. delay: seconds after ``time``, which is that of an
    earlier turn. pause: seconds after the chat's last answer, where the row has no time of its own; None for the first
    of a chat, and where rows have times.
    """

    num_prompt_tokens: int
    num_output_tokens: int
    time: float | None
    block_ids: Sequence[int] = ()
    block_tokens: int | None = None
    chat: int | None = None
    delay: float = 0.0
    pause: float | None = None


@dataclass(slots=True)
class _ChatSession:
    number: int
    known: int = 0
    time: float | None = None
    delay: float = 0.0


@dataclass(slots=True)
class RowMaker:
    """Makes rows of records, and counts what it leaves out or makes up.

    output_tokens: of answers whose length the file does not say; None to refuse such a file. num_failed: rows without
    an answer; num_empty: without a prompt. num_estimated: prompts whose tokens are estimated from text. num_assumed:
    answers that are ``output_tokens`` long. num_media: messages with images or the like, which do not count.
    num_ids_unused: turns of sessions whose block ids are not used. unit, is_like_mooncake: as of ``Columns``.
    """

    output_tokens: int | None = None
    num_failed: int = 0
    num_empty: int = 0
    num_estimated: int = 0
    num_assumed: int = 0
    num_media: int = 0
    num_ids_unused: int = 0
    have_dates: bool = False
    unit: TimeUnit | None = None
    is_like_mooncake: bool = False
    _columns: ColumnsSeen = field(default_factory=ColumnsSeen)
    _sessions: dict[str, _ChatSession] = field(default_factory=dict)
    _num_chats: int = 0

    def rows(self, fields: Mapping[str, Any]) -> Iterator[RequestRow]:
        """Return the rows of a record. ValueError with a phrase that says what is wrong."""
        columns = self._columns.of(fields)
        if columns.prompt_tokens is not None:
            yield from self._kept(self._counted(fields, columns))
        elif isinstance(fields.get("requests"), list):
            yield from self._of_agent(fields, fields["requests"])
        elif isinstance(fields.get("payloads"), list):
            for payload in fields["payloads"]:
                yield from self._of_body(payload, columns, fields)
        elif isinstance(body := fields.get("body", fields.get("payload")), dict):
            yield from self._of_body(body, columns, fields)
        elif isinstance(turns := _first(fields, _CONVERSATIONS), list):
            yield from self._of_conversation(turns, fields, columns)
        else:
            yield from self._of_body(fields, columns, fields)

    def _kept(self, row: RequestRow) -> Iterator[RequestRow]:
        if row.num_prompt_tokens < 1:
            self.num_empty += 1
        elif row.num_output_tokens < 1:
            self.num_failed += 1
        else:
            yield row

    def _time(self, fields: Mapping[str, Any], columns: Columns) -> float | None:
        if columns.time is None:
            return None
        value = fields[columns.time]
        if value is None or value == "":
            return None
        number, is_date = read_time(value)
        self.have_dates = self.have_dates or is_date
        self.unit = columns.unit
        self.is_like_mooncake = columns.is_like_mooncake
        return number

    # ---- lengths as numbers

    def _counted(self, fields: Mapping[str, Any], columns: Columns) -> RequestRow:
        assert columns.prompt_tokens is not None
        prompt = _length(fields[columns.prompt_tokens], columns.prompt_tokens)
        output = self._output(fields, columns)
        time = self._time(fields, columns)
        if columns.session is not None and columns.prompt_tokens == "input_length" and "chat_id" not in fields:
            self.num_ids_unused += columns.block_ids is not None
            return self._turn_of(str(fields[columns.session]), prompt, output, time, _delay(fields))
        if columns.block_ids is None:
            return RequestRow(prompt, output, time)
        size = columns.block_tokens
        if columns.block_tokens_column is not None and fields[columns.block_tokens_column]:
            size = _length(fields[columns.block_tokens_column], columns.block_tokens_column)
        return RequestRow(prompt, output, time, _ids(fields[columns.block_ids]), size)

    def _output(self, fields: Mapping[str, Any], columns: Columns) -> int:
        if columns.output_tokens is not None and fields[columns.output_tokens] is not None:
            return _length(fields[columns.output_tokens], columns.output_tokens)
        if self.output_tokens is None:
            raise MissingColumn("output_len", fields)
        self.num_assumed += 1
        return self.output_tokens

    def _turn_of(
        self, key: str, message: int, output: int, time: float | None, delay: float, *, is_timed: bool | None = None
    ) -> RequestRow:
        """A turn of a session whose rows hold only what is new (AIPerf's Mooncake sessions, and its delta messages).

        is_timed: whether ``time`` is that of the turn itself; None where it is if there is one.
        """
        session = self._sessions.get(key)
        pause = None if session is None or (time is not None if is_timed is None else is_timed) else delay
        if session is None:
            session = self._sessions[key] = _ChatSession(self._new_chat())
        prompt = session.known + message
        session.known = prompt + output
        if time is not None:
            session.time, session.delay = time, 0.0
        session.delay += delay
        return RequestRow(prompt, output, session.time, chat=session.number, delay=session.delay, pause=pause)

    # ---- texts

    def _of_body(self, body: Any, columns: Columns, fields: Mapping[str, Any]) -> Iterator[RequestRow]:
        """One request as it is sent to a server: a prompt or messages, and a limit of tokens."""
        if not isinstance(body, dict):
            raise ValueError("it has a request that is no JSON object")
        time = self._time(fields, columns)
        prompt = body.get("prompt_token_ids", _first(body, _PROMPTS))
        if isinstance(messages := body.get("messages", body.get("input")), list):
            prompt = self._joined(messages)
        if prompt is None:
            raise MissingColumn("input_len", fields)
        output = self._answer_of(body, fields)
        if isinstance(prompt, list) and all(isinstance(each, int) for each in prompt):
            yield from self._kept(RequestRow(len(prompt), output, time, block_ids_of_tokens(prompt), TEXT_BLOCK_TOKENS))
            return
        text = text_of(prompt)
        if columns.session is not None and ("text_input" in fields or fields.get("message_mode") == "delta"):
            self.num_estimated += 1
            key = str(fields[columns.session])
            yield from self._kept(self._turn_of(key, num_tokens(text), output, time, _delay(fields)))
            return
        if isinstance(fields.get("instruction"), str) and isinstance(fields.get("input"), str):
            text += f"\n{fields['input']}"
        self.num_estimated += 1
        yield from self._kept(RequestRow(num_tokens(text), output, time, block_ids_of(text), TEXT_BLOCK_TOKENS))

    def _answer_of(self, body: Mapping[str, Any], fields: Mapping[str, Any]) -> int:
        """Tokens of the recorded answer, or the limit that the request sets."""
        columns = self._columns.of(body)
        name, source = columns.output_tokens, body
        if name is None and body is not fields:
            name, source = self._columns.of(fields).output_tokens, fields
        if name is not None and source[name] is not None:
            return _length(source[name], name)
        answer = _first(body, _ANSWERS)
        if isinstance(answer, str) and answer:
            return num_tokens(answer)
        if self.output_tokens is None:
            raise MissingColumn("output_len", fields)
        self.num_assumed += 1
        return self.output_tokens

    def _joined(self, messages: Sequence[Any]) -> str:
        parts = []
        for message in messages:
            if not isinstance(message, dict):
                raise ValueError("it has a message that is no JSON object")
            self.num_media += has_other_parts(message.get("content"))
            parts.append(f"{message.get('role', '')}\n{text_of(message.get('content'))}")
        return "\n".join(parts)

    def _of_conversation(self, turns: list[Any], fields: Mapping[str, Any], columns: Columns) -> Iterator[RequestRow]:
        """A request for every answer of the model, with all that was said before it as the prompt."""
        if not all(isinstance(turn, dict) for turn in turns):
            raise ValueError("it has a turn that is no JSON object")
        has_limit = any(fields.get(name) is not None for name in _LIMITS)
        if "messages" in fields and (has_limit or not turns or not _is_of_model(turns[-1], len(turns) - 1)):
            yield from self._of_body(fields, columns, fields)
        elif any("role" in turn or "from" in turn or "value" in turn for turn in turns):
            yield from self._recorded(turns, self._time(fields, columns))
        else:
            yield from self._of_turns(turns, self._time(fields, columns))

    def _recorded(self, turns: Sequence[Mapping[str, Any]], time: float | None) -> Iterator[RequestRow]:
        """ShareGPT, LMSYS, WildChat: every message of both sides is there."""
        known, chat, num_answers = 0, self._new_chat(), 0
        for place, turn in enumerate(turns):
            said = num_tokens(text_of(turn.get("value", turn.get("content"))))
            if _is_of_model(turn, place):
                num_answers += 1
                self.num_estimated += 1
                yield from self._kept(RequestRow(known, said, time, chat=chat, pause=0.0 if num_answers > 1 else None))
            known += said
        self.num_failed += not num_answers

    def _of_turns(self, turns: Sequence[Mapping[str, Any]], time: float | None) -> Iterator[RequestRow]:
        """AIPerf's turns: what the user says, and how long an answer may be."""
        session = f" {self._num_chats}"  # no key of a file begins like this
        for turn in turns:
            message = num_tokens("".join(map(text_of, [turn.get("text"), turn.get("texts")])))
            own = self._time(turn, self._columns.of(turn))
            output = self._answer_of(turn, turn)
            self.num_estimated += 1
            yield from self._kept(
                self._turn_of(
                    session,
                    message,
                    output,
                    own if own is not None else time,
                    _delay(turn),
                    is_timed=own is not None,
                )
            )
        self._sessions.pop(session, None)

    def _of_agent(self, fields: Mapping[str, Any], requests: Sequence[Any]) -> Iterator[RequestRow]:
        """A trace of an agent (Weka's KV cache tester): its requests, and those of the agents that it starts."""
        own = fields.get("id", self._num_chats)
        size = _length(fields["block_size"], "block_size") if "block_size" in fields else None
        self._num_chats += 1
        for each in requests:
            if not isinstance(each, dict):
                raise ValueError("it has a request that is no JSON object")
            if isinstance(each.get("requests"), list):
                yield from self._of_agent({**fields, "id": own}, each["requests"])
                continue
            columns = self._columns.of(each)
            if columns.prompt_tokens is None:
                raise MissingColumn("input_len", each)
            row = self._counted(each, columns)
            ids = [_stable_id(f"{own} {one}") for one in row.block_ids]  # they hold within the trace only
            yield from self._kept(row._replace(block_ids=ids, block_tokens=size))

    def _new_chat(self) -> int:
        self._num_chats += 1
        return self._num_chats - 1


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _is_of_model(turn: Mapping[str, Any], place: int) -> bool:
    """Whether the model says it; where nobody is named, every second turn."""
    who = turn.get("role", turn.get("from"))
    return place % 2 == 1 if who is None else str(who).lower() in _OF_MODEL


def _delay(fields: Mapping[str, Any]) -> float:
    """Seconds of AIPerf's milliseconds."""
    value = fields.get("delay")
    return 0.0 if value is None else read_time(value)[0] / 1000


def _length(value: Any, name: str) -> int:
    """A number of tokens, or 0. ValueError where it is out of range."""
    if type(value) is int:
        length = value
    elif isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"its {name} is {str(value)[:40]!r}, no number")
    else:
        length = _whole(value, name)
    if not 0 <= length <= LONGEST:
        raise ValueError(f"its {name} is {length:,}" if abs(length) < 1 << 64 else f"its {name} is beyond all bounds")
    return length


def _whole(value: float | str, name: str) -> int:
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        return int(value)
    try:
        number = float(value)
    except ValueError:
        shown = f"{str(value)[:40]!r}, no number" if str(value).strip() else "empty"
        raise ValueError(f"its {name} is {shown}") from None
    if not math.isfinite(number) or number != int(number):
        raise ValueError(f"its {name} is {str(value)[:40]}, no whole number")
    return int(number)


def _ids(value: Any) -> Sequence[int]:
    """Read it as a list, or as text like ``[1, 2]``."""
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(map(int, _NUMBER.findall(value)))
    if not isinstance(value, list):
        raise ValueError("its hash_ids are no list")
    if all(type(each) is int and 0 <= each <= _LARGEST_ID for each in value):
        return tuple(value)
    return tuple(_stable_id(str(each)) for each in value)


def _stable_id(text: str) -> int:
    """The same in every process, unlike ``hash``."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")

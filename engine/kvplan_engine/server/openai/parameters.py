"""From a request's body to SamplingParams and the options of its answer.

What cannot be served is a 400 that names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from kvplan_engine.errors import EngineError
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.server.openai.errors import bad_request, not_supported
from kvplan_engine.server.openai.requests import REFUSED, ChatBody, CompletionBody, SamplingFields

# How much there is to decode in a body, before it is decoded: that keeps the event loop, whatever is in it.
#
# A text costs next to nothing, however long it is. A number costs 0.1 us, a list or an object up to ten times as much.


MOST_VALUES = 1 << 19
MOST_CONTAINERS = 1 << 16
_SLICE_BYTES = 1 << 18  # what is looked at before another thread may go on


def is_decoded_soon(body: bytes, most_values: int = MOST_VALUES) -> bool:
    """Whether ``body`` has at most ``most_values`` values, of which at most MOST_CONTAINERS are lists or objects."""
    return _is_small(_slices(body), most_values) or _is_small(_outside_texts(body), most_values)


def _slices(body: bytes) -> Iterator[bytes]:
    return (body[start : start + _SLICE_BYTES] for start in range(0, len(body), _SLICE_BYTES))


def _outside_texts(body: bytes) -> Iterator[bytes]:
    """What stands outside of the texts in ``body``, in pieces."""
    is_in_text = False
    start = 0
    while start < len(body):
        piece = body[start : start + _SLICE_BYTES]
        num_backslashes = len(piece) - len(piece.rstrip(b"\\"))
        if num_backslashes % 2:  # what the last one escapes belongs to it
            piece += body[start + len(piece) : start + len(piece) + 1]
        start += len(piece)
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')  # each quote begins or ends a text
        yield b"".join(parts[1 if is_in_text else 0 :: 2])
        if len(parts) % 2 == 0:
            is_in_text = not is_in_text


def _is_small(pieces: Iterator[bytes], most_values: int) -> bool:
    num_commas = num_containers = 0
    for piece in pieces:
        num_commas += piece.count(b",")
        num_containers += piece.count(b"[") + piece.count(b"{")
        if num_commas >= most_values or num_containers > MOST_CONTAINERS:
            return False
    return True


# Samples of one request: more would be a mistake, or an attack.
_MOST_SAMPLES = 128
_MOST_CHOICES = 1 << 14  # of one request: each is made before the first answer
_MOST_LOGPROBS = 20  # vLLM's max_logprobs
_MOST_STOP_STRINGS = 64
_LONGEST_STOP_STRING = 1024
_MOST_NAMED_TOKENS = 1 << 19  # more than any vocabulary has; each prompt is sent to the engine with all of them
_UNKNOWN_FIELD = re.compile("unknown field `(.*?)`")

Body = TypeVar("Body")


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How an answer is given, beside how it is sampled.

    num_logprobs: alternatives to show per token, None for no log-probabilities at all; num_prompt_logprobs: the same
    for the tokens of the prompt. echo_only: the prompt is repeated and the one token that follows it is not shown.
    """

    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    stop_strings: tuple[str, ...]
    include_stop: bool
    skip_special_tokens: bool
    num_logprobs: int | None
    num_prompt_logprobs: int | None = None
    echo: bool = False
    echo_only: bool = False


def parse_body(body: bytes, kind: type[Body]) -> Body:
    """400 for what is not JSON, not of this shape, or has a field that nobody knows."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as problem:
        unknown = _UNKNOWN_FIELD.search(str(problem))
        if unknown is not None:
            raise not_supported(unknown[1]) from None
        raise bad_request(f"The request body is not valid: {str(problem).rstrip('.')}.") from None


def refuse_unsupported(body: SamplingFields) -> None:
    """400 for a field whose effect the client would not get."""
    for name, neutral in REFUSED.items():
        value = getattr(body, name, None)
        if not any(value == each and type(value) is type(each) for each in neutral):
            raise not_supported(name)
    if body.best_of not in (None, body.n or 1):
        raise not_supported("best_of", "is not supported by kvplan serve, unless it equals n")
    if body.cache_salt == "":
        raise bad_request("'cache_salt' must not be empty.", "cache_salt")
    if isinstance(body, ChatBody) and body.echo:
        raise not_supported("echo", "is supported by /v1/completions alone")


def answer_options(body: SamplingFields) -> AnswerOptions:
    stream = bool(body.stream)
    if body.stream_options is not None and not stream:
        raise bad_request("'stream_options' is for requests with 'stream': true.", "stream_options")
    options = body.stream_options
    continuous = bool(options and options.continuous_usage_stats)
    return AnswerOptions(
        stream=stream,
        include_usage=bool(options and options.include_usage),
        continuous_usage=continuous and bool(options and options.include_usage),
        return_token_ids=bool(body.return_token_ids),
        stop_strings=_stop_strings(body),
        include_stop=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        num_logprobs=_num_logprobs(body),
        num_prompt_logprobs=_num_prompt_logprobs(body),
        echo=_echoes(body),
        echo_only=_is_echo_only(body),
    )


def _echoes(body: SamplingFields) -> bool:
    return isinstance(body, CompletionBody) and bool(body.echo)


def _is_echo_only(body: SamplingFields) -> bool:
    """max_tokens 0 with echo, as in vLLM: the engine still generates a token."""
    return _echoes(body) and body.max_tokens == 0


def _stop_strings(body: SamplingFields) -> tuple[str, ...]:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if "" in stops:
        raise bad_request("A stop string must not be empty.", "stop")
    if len(stops) > _MOST_STOP_STRINGS or any(len(stop) > _LONGEST_STOP_STRING for stop in stops):
        raise bad_request(
            f"At most {_MOST_STOP_STRINGS} stop strings of {_LONGEST_STOP_STRING:,} characters are possible.", "stop"
        )
    return stops


def _num_logprobs(body: SamplingFields) -> int | None:
    if isinstance(body, CompletionBody):
        return _checked_logprobs(body.logprobs, "logprobs")
    assert isinstance(body, ChatBody)
    if body.top_logprobs and not body.logprobs:
        raise bad_request("'top_logprobs' needs 'logprobs': true.", "top_logprobs")
    number = _checked_logprobs(body.top_logprobs, "top_logprobs")
    return (number or 0) if body.logprobs else None


def _num_prompt_logprobs(body: SamplingFields) -> int | None:
    """Count as vLLM does: echo shows the prompt's as those of the answer, a stream has no other place for them."""
    if body.prompt_logprobs is None:
        return body.logprobs if isinstance(body, CompletionBody) and body.echo else None
    if body.stream and body.prompt_logprobs:
        raise bad_request("'prompt_logprobs' are not available with 'stream': true.", "prompt_logprobs")
    return _checked_logprobs(body.prompt_logprobs, "prompt_logprobs")


def _checked_logprobs(number: int | None, field: str) -> int | None:
    if number is not None and not 0 <= number <= _MOST_LOGPROBS:
        raise bad_request(f"'{field}' must lie in [0, {_MOST_LOGPROBS}].", field)
    return number


def sampling_params(
    body: SamplingFields, prompt_lengths: Sequence[int], max_model_len: int, vocab_size: int
) -> list[SamplingParams]:
    """Parameters for each prompt, by its number of tokens. 400 when one does not fit, or a value is out of range."""
    if (body.n or 1) > _MOST_SAMPLES:
        raise bad_request(f"'n' must be at most {_MOST_SAMPLES}.", "n")
    if (body.n or 1) * len(prompt_lengths) > _MOST_CHOICES:
        raise bad_request(f"'n' times the number of prompts must be at most {_MOST_CHOICES:,}.", "n")
    num_named = len(body.logit_bias or ()) + len(body.stop_token_ids or ())
    if num_named * len(prompt_lengths) > _MOST_NAMED_TOKENS:
        raise bad_request(
            f"'logit_bias' and 'stop_token_ids' may name at most {_MOST_NAMED_TOKENS:,} tokens, counted once for "
            "each prompt.",
            "logit_bias" if body.logit_bias else "stop_token_ids",
        )
    asked = [_checked_max_tokens(body, length, max_model_len) for length in prompt_lengths]
    made = {number: _params(body, number, vocab_size) for number in set(asked)}
    return [made[number] for number in asked]


def _checked_max_tokens(body: SamplingFields, num_prompt_tokens: int, max_model_len: int) -> int:
    room = max_model_len - num_prompt_tokens
    asked = max_tokens(body, default=room)
    if num_prompt_tokens == 0:
        raise bad_request("The prompt is empty: at least one token is needed.", "prompt")
    if room < 1 or asked > room:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{num_prompt_tokens + max(asked, 0)} tokens ({num_prompt_tokens} in the prompt, {max(asked, 0)} in the "
            "completion). Please reduce the length of the prompt or of the completion.",
            "prompt" if room < 1 else "max_tokens",
        )
    return asked


def _params(body: SamplingFields, asked: int, vocab_size: int) -> SamplingParams:
    for name, number in (("seed", body.seed), ("top_k", body.top_k)):
        if number is not None and not -(2**63) <= number < 2**63:
            raise bad_request(f"'{name}' must fit 64 bits.", name)
    try:
        params = SamplingParams(
            n=_or(body.n, 1),
            temperature=_or(body.temperature, 1.0),
            top_p=_or(body.top_p, 1.0),
            top_k=_or(body.top_k, 0),
            min_p=_or(body.min_p, 0.0),
            max_tokens=1 if _is_echo_only(body) else asked,
            min_tokens=_or(body.min_tokens, 0),
            ignore_eos=bool(body.ignore_eos),
            stop_token_ids=tuple(body.stop_token_ids or ()),
            seed=body.seed,
            logprobs=_num_logprobs(body),
            prompt_logprobs=_num_prompt_logprobs(body),
            presence_penalty=_or(body.presence_penalty, 0.0),
            frequency_penalty=_or(body.frequency_penalty, 0.0),
            repetition_penalty=_or(body.repetition_penalty, 1.0),
            logit_bias=_logit_bias(body),
        )
        params.check_vocabulary(vocab_size)
    except EngineError as problem:
        raise bad_request(problem.message[:1].upper() + problem.message[1:]) from None
    return params


def max_tokens(body: SamplingFields, default: int) -> int:
    """Chat answers may fill the context; a completion has OpenAI's default of 16 tokens."""
    if isinstance(body, ChatBody):
        return _or(body.max_completion_tokens, _or(body.max_tokens, default))
    return _or(body.max_tokens, min(16, max(default, 1)))


def _logit_bias(body: SamplingFields) -> dict[int, float]:
    try:
        return {_token(name): bias for name, bias in (body.logit_bias or {}).items()}
    except ValueError:
        raise bad_request("The keys of 'logit_bias' must be token ids.", "logit_bias") from None


def _token(name: str) -> int:
    """ValueError for what is no number, or is one in letters that int() takes as well: "1_0", " 1"."""
    if not (name.isascii() and name.removeprefix("-").isdigit()):
        raise ValueError(name)
    return int(name)


Value = TypeVar("Value")


def _or(value: Value | None, default: Value) -> Value:
    return default if value is None else value

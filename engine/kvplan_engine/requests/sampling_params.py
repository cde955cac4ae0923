"""How a request's tokens are chosen. Names and defaults are vLLM's. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from operator import index
from typing import Any, SupportsIndex

from kvplan_engine.errors import EngineError

# Types of what a user gives for a request, checked before anything is queued. No torch.


_LONGEST_SHOWN = 60
_LIMIT = 2**63


def whole_number(what: str, value: Any) -> int:
    """``value`` as an int of 64 bits: numpy's are converted. EngineError for anything else, a bool too."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise _wrong(what, "a whole number", value)
    try:
        number = index(value)
    except TypeError:  # an array, a tensor of floats
        raise _wrong(what, "a whole number", value) from None
    if not -_LIMIT <= number < _LIMIT:
        raise EngineError(f"{what} must fit 64 bits.")
    return number


def real_number(what: str, value: Any) -> float:
    """``value`` as an int or a float. EngineError for anything else, a bool too."""
    if isinstance(value, (bool, complex)) or not isinstance(value, Real):
        raise _wrong(what, "a number", value)
    try:
        return float(value)
    except OverflowError:
        raise EngineError(f"{what} is too large for a number.") from None


def truth(what: str, value: Any) -> bool:
    """EngineError unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise _wrong(what, "True or False", value)
    return value


def checked_token_ids(what: str, values: Any) -> list[int]:
    """``values`` as a list of ints, itself where it is one. EngineError where one of them is none."""
    if isinstance(values, list) and all(kind is int for kind in set(map(type, values))):
        return values
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Collection):
        raise _wrong(what, "a list of token ids", values)
    return [whole_number(f"a token of {what}", value) for value in values]


def texts(what: str, values: Any) -> tuple[str, ...]:
    """``values``, one text or several, as a tuple."""
    if isinstance(values, str):
        return (values,)
    if isinstance(values, (bytes, Mapping)) or not isinstance(values, Collection):
        raise _wrong(what, "a text or a list of texts", values)
    for value in values:
        if not isinstance(value, str):
            raise _wrong(what, "a text or a list of texts", value)
    return tuple(values)


def entries(what: str, values: Any) -> dict[int, float]:
    """``values``, a number for each of some tokens."""
    if not isinstance(values, Mapping):
        raise _wrong(what, "numbers by token id", values)
    return {
        whole_number(f"a token of {what}", token): real_number(f"a value of {what}", value)
        for token, value in values.items()
    }


def _wrong(what: str, wanted: str, value: Any) -> EngineError:
    shown = repr(value)
    if len(shown) > _LONGEST_SHOWN:
        shown = shown[: _LONGEST_SHOWN - 4] + " ..."
    return EngineError(f"{what} must be {wanted}, got {shown} ({type(value).__name__}).")


_WHOLE = frozenset({"n", "top_k", "max_tokens", "min_tokens", "seed", "logprobs", "prompt_logprobs"})
_OPTIONAL = frozenset({"stop", "seed", "logprobs", "prompt_logprobs"})
"""Settings that None turns off."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One request's sampling settings. ``temperature=0`` is greedy.

    n: parallel samples of one prompt. top_k=0 (or -1) and top_p=1.0 keep the whole vocabulary. min_p: drop tokens less
    likely than ``min_p`` times the likeliest. seed: makes this request's draws independent of what else is in the
    batch; in 16 bits the logits that they are drawn from depend on the pieces in which a prompt is computed. logprobs:
    how many alternatives to report per token; prompt_logprobs: the same for the tokens of the prompt, which is then
    computed as a whole, cached or not. Penalties are OpenAI's (presence and frequency, over generated tokens) and
    Hugging Face's (repetition, over prompt and generated tokens).
    EngineError when a value is out of range, or of another type.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: Sequence[str] | str | None = None
    stop_token_ids: Sequence[int] = ()
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_types()
        self._check_ranges()

    def _check_types(self) -> None:
        """Convert what other libraries call a number or a list; EngineError for what is of another type."""
        for setting in fields(self):
            value = getattr(self, setting.name)
            object.__setattr__(self, setting.name, _checked(setting.name, value))

    def _check_ranges(self) -> None:
        for good, text in (
            (self.n >= 1, f"n must be at least 1, got {self.n}"),
            (
                0 <= self.temperature < float("inf"),
                f"temperature must not be negative, nor infinite, got {self.temperature}",
            ),
            (0 < self.top_p <= 1, f"top_p must lie in (0, 1], got {self.top_p}"),
            (self.top_k >= -1, f"top_k must be -1, 0 or positive, got {self.top_k}"),
            (0 <= self.min_p <= 1, f"min_p must lie in [0, 1], got {self.min_p}"),
            (self.max_tokens >= 1, f"max_tokens must be at least 1, got {self.max_tokens}"),
            (
                0 <= self.min_tokens <= self.max_tokens,
                f"min_tokens must lie in [0, {self.max_tokens}], got {self.min_tokens}",
            ),
            (self.logprobs is None or self.logprobs >= 0, f"logprobs must not be negative, got {self.logprobs}"),
            (
                self.prompt_logprobs is None or self.prompt_logprobs >= 0,
                f"prompt_logprobs must not be negative, got {self.prompt_logprobs}",
            ),
            (-2 <= self.presence_penalty <= 2, f"presence_penalty must lie in [-2, 2], got {self.presence_penalty}"),
            (-2 <= self.frequency_penalty <= 2, f"frequency_penalty must lie in [-2, 2], got {self.frequency_penalty}"),
            (
                0 < self.repetition_penalty < float("inf"),
                f"repetition_penalty must be positive, got {self.repetition_penalty}",
            ),
            (
                all(-100 <= bias <= 100 for bias in self.logit_bias.values()),
                f"logit_bias must lie in [-100, 100], got {dict(self.logit_bias)}",
            ),
            ("" not in self.stop_strings, "a stop string must not be empty"),
        ):
            if not good:
                raise EngineError(f"sampling parameters: {text}.")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return () if self.stop is None else texts("stop", self.stop)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < 1e-5

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def changes_logits(self) -> bool:
        """Whether a penalty or a bias has to be applied to the logits at every step."""
        return self.has_penalties or bool(self.logit_bias)

    def check_vocabulary(self, vocab_size: int) -> None:
        """EngineError when a token named here is outside the vocabulary, or logprobs exceeds its size."""
        for name, token_ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token in token_ids:
                if not 0 <= token < vocab_size:
                    raise EngineError(
                        f"sampling parameters: {name} names token {token}, outside the vocabulary of {vocab_size:,}."
                    )
        for name, number in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if number is not None and number > vocab_size:
                raise EngineError(
                    f"sampling parameters: {name} {number} is more than the {vocab_size:,} tokens there are."
                )


def _checked(name: str, value: Any) -> Any:
    """The value of a setting, in the type that it has here."""
    what = f"sampling parameters: {name}"
    if value is None and name in _OPTIONAL:
        return None
    if name in _WHOLE:
        return whole_number(what, value)
    if name == "ignore_eos":
        return truth(what, value)
    if name == "stop":
        return texts(what, value)
    if name == "stop_token_ids":
        return () if value is None else tuple(checked_token_ids(what, value))
    if name == "logit_bias":
        return {} if value is None else entries(what, value)
    return real_number(what, value)

"""Prompts of a wished number of tokens, for a server whose tokenizer is not at hand.

They are made of common English words, each of which is one token of nearly every byte-pair tokenizer when a space
stands before it. What a text really counts is asked of the server: two probes of different length give tokens per word
and what the template adds. The figures use the server's own counts in any case.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Final

from kvplan.workload.requests import RequestSpec, prompt_token_ids

_TEXT: Final = """
about after against album all an and another any are area around as at back be been before began
being between book born both by called can church city company day death during early end family few
film first for form found four from game government great group had has have head held her high him
his home house however in including into is it its known large later law left life line local
located long made main major many may more most much music name named national new no north not
number of on one only or order other out over part party people place played power public same
school season second service set several she side since small so some song south state still street
such system team that the their then there these they this three through time to two under united
university until up used war was water well were what when where which while who with won work world
would year years
"""
WORDS: Final = tuple(_TEXT.split())
"""Frequent English words, each once."""
_SPACED: Final = tuple(f"{word} " for word in WORDS)
# Words of the stream that prompts are cut from.
_STREAM_WORDS: Final = 1 << 16
_NONCE_WORDS: Final = 4
_NUM_NONCES: Final = len(WORDS) ** _NONCE_WORDS


@dataclass(frozen=True, slots=True)
class PromptScale:
    """How many tokens a prompt of words has, as the server counts: overhead + tokens_per_word x words."""

    tokens_per_word: float = 1.0
    overhead_tokens: float = 0.0

    @staticmethod
    def between(few: tuple[int, int], many: tuple[int, int]) -> PromptScale:
        """From two probes, each (words, tokens); the second one longer."""
        per_word = (many[1] - few[1]) / (many[0] - few[0])
        return PromptScale(per_word, few[1] - per_word * few[0]) if per_word > 0 else PromptScale()

    def num_words(self, num_tokens: int) -> int:
        """Words of a prompt of about so many tokens, at least one."""
        return max(1, round((num_tokens - self.overhead_tokens) / self.tokens_per_word))


PLAIN_SCALE: Final = PromptScale()
"""One token per word and nothing else."""


@dataclass(frozen=True, slots=True)
class PromptBook:
    """Writes prompts: the same for the same seed and run.

    run: names the run; its own parts are in no other, because a server remembers what earlier runs asked. They begin
    with words that no other request has, of this run or another, so that no prefix cache finds one in another, however
    many tokens a word has; shared prefixes and those of ``same_prompt`` are found by it. Writing is a cut out of a
    stream made once, of at least ``stream_words``: a long prompt must not hold up the event loop.
    """

    seed: int
    scale: PromptScale = PLAIN_SCALE
    same_prompt: bool = False
    run: str = ""
    stream_words: int = _STREAM_WORDS

    def prompt(self, index: int, num_tokens: int, prefix_index: int = 0, num_prefix_tokens: int = 0) -> str:
        """The prompt of one request: its shared prefix, then words of its own."""
        num_words = self.scale.num_words(num_tokens)
        num_shared = min(round(num_prefix_tokens / self.scale.tokens_per_word), num_words)
        shared = _stream(f"{self.seed} prefix {prefix_index}", num_shared).words(0, num_shared)
        own = self._own(0 if self.same_prompt else index, num_words - num_shared)
        # A space first: many words are one token only with it.
        return "".join(f" {part}" for part in (shared, own) if part)

    def prompt_of(self, spec: RequestSpec) -> str:
        """The prompt of a request, with what its file says that others begin with, too."""
        if not spec.shares_by_file or self.same_prompt:
            return self.prompt(spec.index, spec.num_prompt_tokens, spec.prefix_index, spec.num_prefix_tokens)
        num_words = self.scale.num_words(spec.num_prompt_tokens)
        if spec.chat is not None:
            return f" {self._named('chat', spec.chat, num_words)}"
        parts, written = [], 0
        for place, block in enumerate(spec.block_ids, start=1):
            end = min(round(place * spec.block_tokens / self.scale.tokens_per_word), num_words)
            if end > written:
                parts.append(self._named("block", block, end - written))
            written = max(written, end)
        if num_words > written:
            parts.append(self._own(spec.index, num_words - written))
        return "".join(f" {part}" for part in parts)

    def _named(self, kind: str, number: int, num_words: int) -> str:
        """The first words of this run's text of that kind and number: of a longer one, too."""
        nonce = _nonce((_first_nonce(f"{self.seed} {self.run} {kind}") + number) % _NUM_NONCES)[:num_words]
        stream = _stream(f"{self.seed} {self.run} own", _STREAM_WORDS)
        parts, place, num_left = nonce, number * 7919 % _STREAM_WORDS, num_words - len(nonce)
        while num_left > 0:  # from the end back to the start
            count = min(num_left, stream.num_words - place)
            parts.append(stream.words(place, count))
            place, num_left = 0, num_left - count
        return " ".join(parts)

    def prepare(self, longest_tokens: int, num_prefixes: int, num_prefix_tokens: int) -> None:
        """Make the streams before the first request is due."""
        for prefix_index in range(max(num_prefixes, 1)):
            self.prompt(0, longest_tokens, prefix_index, num_prefix_tokens if num_prefixes else 0)

    def _own(self, index: int, num_words: int) -> str:
        nonce = _nonce(_first_nonce(f"{self.seed} {self.run}") + index)[:num_words]
        num_left = num_words - len(nonce)
        stream_words = max(self.stream_words, 1 << (2 * num_left).bit_length())  # few sizes: each is kept
        stream = _stream(f"{self.seed} {self.run} own", stream_words)
        place = index * 7919 % (stream.num_words - num_left)
        return " ".join([*nonce, stream.words(place, num_left)]).rstrip()


@lru_cache(maxsize=64)
def _first_nonce(key: str) -> int:
    """Where the numbers of a run begin: runs that began alike would be found in the cache of the one before."""
    return random.Random(f"{key} nonce").randrange(len(WORDS) ** _NONCE_WORDS)


def _nonce(index: int) -> list[str]:
    """The index in words, its lowest digit first: neighbours differ from the first word on."""
    digits = []
    for _ in range(_NONCE_WORDS):
        index, digit = divmod(index, len(WORDS))
        digits.append(WORDS[digit])
    return digits


@dataclass(frozen=True, slots=True)
class _Stream:
    """Random words as one text, with the place at which each begins (and one past the last)."""

    text: str
    starts: tuple[int, ...]

    @property
    def num_words(self) -> int:
        return len(self.starts) - 1

    def words(self, first: int, count: int) -> str:
        return self.text[self.starts[first] : self.starts[first + count]].rstrip()


@lru_cache(maxsize=1024)
def _stream(key: str, count: int) -> _Stream:
    words = random.Random(key).choices(_SPACED, k=count)
    return _Stream("".join(words), tuple(accumulate(map(len, words), initial=0)))


@dataclass(frozen=True, slots=True)
class TokenPrompts:
    """Random tokens of a known vocabulary, as a sweep's own engine gets them: of exactly the wished number."""

    seed: int
    vocab_size: int

    def prompt(self, spec: RequestSpec) -> list[int]:
        return prompt_token_ids(self.seed, spec, self.vocab_size)

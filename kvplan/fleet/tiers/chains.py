"""Prompts as chains of whole blocks, in which two requests agree as far as their pieces have the same keys.

    tokens    0 ............ 1536 ......... 3000      runs (a, 1536) (b, 3000), blocks of 512
    blocks    0    1    2    3    4                   pieces (a, 3) (b, 5), 440 tokens are in no whole block

A block belongs to the run that holds its last token. Behind the pieces come blocks that no other request has: those of
a prompt's own tokens, and of its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvplan.fleet.requests import FleetRequest, TokenRun


class ChainPiece(NamedTuple):
    """Blocks [first, end) of a chain; whoever has the same key has the same blocks before them, too.

    Requests that share a piece hold the same object, so that memory grows with what is distinct.
    """

    key: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Chain:
    """One request. num_prompt_blocks: whole ones, of which ``most_hit_blocks`` may be found: the last token is always
    computed. num_blocks: all that it leaves, its answer's among them."""

    sent: float
    num_prompt_tokens: int
    pieces: tuple[ChainPiece, ...]
    num_prompt_blocks: int
    most_hit_blocks: int
    num_blocks: int


def chains_of(requests: Sequence[FleetRequest], block_tokens: int, *, keeps_answers: bool = True) -> list[Chain]:
    """Return a chain for each request, in their order. keeps_answers: what is generated takes room, too."""
    pieces = _Pieces(block_tokens, _ends_of_keys(requests, keeps_answers=keeps_answers))
    return [_chain(each, block_tokens, pieces, keeps_answers=keeps_answers) for each in requests]


def _chain(request: FleetRequest, size: int, pieces: _Pieces, *, keeps_answers: bool) -> Chain:
    prompt = request.num_prompt_tokens
    # The last token of an answer is sampled and never computed.
    kept = prompt + max(request.num_output_tokens - 1, 0) if keeps_answers else prompt
    return Chain(
        request.sent,
        prompt,
        tuple(pieces.of(_keyed_runs(request, kept))),
        prompt // size,
        max(prompt - 1, 0) // size,
        kept // size,
    )


def _keyed_runs(request: FleetRequest, kept: int) -> tuple[TokenRun, ...]:
    """Return the runs of prompt and answer."""
    if request.answer_key is None or kept == request.num_prompt_tokens:
        return request.runs
    return (*request.runs, TokenRun(request.answer_key, kept))


def _ends_of_keys(requests: Iterable[FleetRequest], *, keeps_answers: bool) -> dict[int, set[int]]:
    """Return where runs of a key end, for keys of which some are longer than others (a chat that goes on)."""
    usual: dict[int, int] = {}
    found: dict[int, set[int]] = {}
    for request in requests:
        prompt = request.num_prompt_tokens
        kept = prompt + max(request.num_output_tokens - 1, 0) if keeps_answers else prompt
        for run in _keyed_runs(request, kept):
            if usual.setdefault(run.key, run.end) != run.end:
                found.setdefault(run.key, {usual[run.key]}).add(run.end)
    return found


class _Pieces:
    """Cuts runs into pieces, at every place where some run of the same key ends."""

    def __init__(self, size: int, ends: dict[int, set[int]]) -> None:
        self._size, self._ends = size, ends
        self._known: dict[tuple[int, int], ChainPiece] = {}

    def of(self, runs: Iterable[TokenRun]) -> Iterator[ChainPiece]:
        """Yield the pieces of a prompt, one behind the other."""
        first = begun = 0
        for run in runs:
            cuts = self._ends.get(run.key)
            places = (run.end,) if cuts is None else sorted(each for each in cuts if begun < each <= run.end)
            for place in places:
                if (end := place // self._size) > first:
                    yield self._piece((run.key, place), first, end)
                    first = end
            begun = run.end

    def _piece(self, key: tuple[int, int], first: int, end: int) -> ChainPiece:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = ChainPiece(len(self._known), first, end)
        return found

"""llama.cpp through its own batches, one sequence for each request: what its server does, without the server.

As many prompts as fit a batch are read at once; then every step decodes one token of each request that is not done.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from formats import gguf_path
from protocol import Loaded, Order, serve
from workload import MAX_MODEL_LEN, MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, Request, Scenario


class Position(NamedTuple):
    """One token of a sequence in a batch. wanted: whether its logits are."""

    token: int
    position: int
    sequence: int
    wanted: bool


@dataclass(slots=True)
class Context:
    """A loaded model with room for MAX_NUM_SEQS sequences."""

    library: Any
    handle: Any
    batch: Any
    vocab_size: int

    def forget(self) -> None:
        self.library.llama_memory_clear(self.library.llama_get_memory(self.handle), False)

    def greedy_tokens(self, positions: Sequence[Position]) -> list[int]:
        """The likeliest token after each position that is wanted, in their order."""
        batch = self.batch
        batch.n_tokens = len(positions)
        for index, each in enumerate(positions):
            batch.token[index] = each.token
            batch.pos[index] = each.position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = each.sequence
            batch.logits[index] = each.wanted
        status = self.library.llama_decode(self.handle, batch)
        if status:
            raise RuntimeError(f"llama_decode gave {status}")
        wanted = [index for index, each in enumerate(positions) if each.wanted]
        return [int(self._logits(index).argmax()) for index in wanted]

    def _logits(self, index: int) -> np.ndarray:
        row = self.library.llama_get_logits_ith(self.handle, index)
        return np.ctypeslib.as_array(ctypes.cast(row, ctypes.POINTER(ctypes.c_float)), shape=(self.vocab_size,))


def _context(order: Order) -> Context:
    import llama_cpp

    model = llama_cpp.llama_model_load_from_file(
        gguf_path(order.directory).encode(), llama_cpp.llama_model_default_params()
    )
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = MAX_NUM_SEQS * MAX_MODEL_LEN
    params.n_seq_max = MAX_NUM_SEQS
    params.n_batch = MAX_NUM_BATCHED_TOKENS
    params.n_threads = params.n_threads_batch = order.num_threads
    handle = llama_cpp.llama_init_from_model(model, params)
    if not handle:
        raise RuntimeError("llama.cpp made no context")
    batch = llama_cpp.llama_batch_init(MAX_NUM_BATCHED_TOKENS, 0, 1)
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    return Context(llama_cpp, handle, batch, vocab_size)


def _prompt_batches(requests: Sequence[Request]) -> list[list[int]]:
    """The requests whose prompts are read together."""
    batches: list[list[int]] = []
    room = 0
    for index, request in enumerate(requests):
        count = len(request.prompt_token_ids)
        if count > room:
            batches.append([])
            room = MAX_NUM_BATCHED_TOKENS
        batches[-1].append(index)
        room -= count
    return batches


def _read_prompts(context: Context, requests: Sequence[Request]) -> list[list[int]]:
    """The first token of each answer."""
    answers: list[list[int]] = []
    for batch in _prompt_batches(requests):
        positions = [
            Position(token, at, index, at + 1 == len(requests[index].prompt_token_ids))
            for index in batch
            for at, token in enumerate(requests[index].prompt_token_ids)
        ]
        answers += [[token] for token in context.greedy_tokens(positions)]
    return answers


def _unfinished(requests: Sequence[Request], answers: list[list[int]]) -> list[int]:
    return [index for index, answer in enumerate(answers) if len(answer) < requests[index].output_tokens]


def _next_position(index: int, request: Request, answer: list[int]) -> Position:
    return Position(answer[-1], len(request.prompt_token_ids) + len(answer) - 1, index, True)


def load(order: Order) -> Loaded:
    context = _context(order)

    def run(asked: Scenario) -> list[list[int]]:
        if asked.num_samples != 1 or asked.shares_prefixes:
            raise ValueError(f"llama.cpp is not asked for {asked.name}")
        context.forget()
        requests = asked.requests
        answers = _read_prompts(context, requests)
        while active := _unfinished(requests, answers):
            positions = [_next_position(index, requests[index], answers[index]) for index in active]
            for index, token in zip(active, context.greedy_tokens(positions), strict=True):
                answers[index].append(token)
        return answers

    return run


if __name__ == "__main__":
    from importlib.metadata import version

    serve(version("llama-cpp-python"), load)

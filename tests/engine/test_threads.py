"""``LLM`` used from several threads at once: calls queue, and every answer is the one that a single thread gets."""

from __future__ import annotations

import threading

from engine_answers import small_llm
from small_models import Checkpoint

from kvplan_engine import BeamSearchParams, SamplingParams

PARAMS = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


def prompt(first: int) -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": [first, first + 1, first + 2]}]


def test_generate_from_two_threads_at_once(checkpoints: dict[str, Checkpoint]) -> None:
    """Before calls queued, the threads stepped one engine together: answers went missing, or its queues broke."""
    rounds = 8
    with small_llm(checkpoints["gpt2"].path, max_model_len=128) as llm:
        expected = {first: llm.generate(prompt(first), PARAMS)[0].outputs[0].token_ids for first in (1, 20)}
        beams = llm.beam_search(prompt(5), BeamSearchParams(beam_width=2, max_tokens=8))[0].sequences[0].tokens
        got: dict[int, list[list[int]]] = {1: [], 20: []}
        searched: list[list[int]] = []
        ready = threading.Barrier(3)

        def generate(first: int) -> None:
            ready.wait()
            for _ in range(rounds):
                (output,) = llm.generate(prompt(first), PARAMS)
                got[first].append(list(output.outputs[0].token_ids))

        def search() -> None:
            ready.wait()
            params = BeamSearchParams(beam_width=2, max_tokens=8)
            searched.extend(llm.beam_search(prompt(5), params)[0].sequences[0].tokens for _ in range(rounds))

        threads = [threading.Thread(target=generate, args=(first,)) for first in got]
        threads.append(threading.Thread(target=search))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == {first: [list(tokens)] * rounds for first, tokens in expected.items()}
        assert searched == [beams] * rounds
        llm.engine.check()

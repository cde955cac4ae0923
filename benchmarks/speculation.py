"""What speculative decoding gains in the engine, in turn with plain decoding, beside what the planner predicts.

    python benchmarks/speculation.py MODEL                              n-grams of real text
    python benchmarks/speculation.py MODEL --settings                   ten settings beside their prediction
    python benchmarks/speculation.py MODEL --calibration PROFILE.json   the same, by what kvplan calibrate found

MODEL: a GGUF file or a directory with weights and a tokenizer. Both ways run in turn, several times; steps count in
which every sequence decoded. With ``--cpu-time`` times are the processor's on one thread, in which others' work
hardly shows.

The ten settings have a proposer that knows the plain answer and is right with a given probability, so that every step
verifies as many drafts: their time of a step is the lower quartile. The prediction is that of a sweep
(kvplan/sweeps/forecast/drafting.py) at the acceptance that came of it; without a calibration a step's time is that of
a plain step with as many tokens, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("engine", ".")]

from kvplan.catalog.models import resolve_model  # noqa: E402
from kvplan.estimate.speed.steps.step_time import Speed, StepTimes, step_shape  # noqa: E402
from kvplan.runs.columns import Row  # noqa: E402
from kvplan.sweeps.forecast.drafting import gain_at  # noqa: E402
from kvplan_engine import LLM, SamplingParams  # noqa: E402
from kvplan_engine.requests.request import Sequence as TokenSequence  # noqa: E402

import numpy as np  # noqa: E402  isort: skip
import torch  # noqa: E402  isort: skip

_LIST = "\n".join(f"{number}. the value of item {number} is {7 * number % 13}" for number in range(1, 13))
TEXTS = {
    "refrain": "The river runs down to the sea, and the sea gives it back to the rain.\n" * 12,
    "repetitive": f"Repeat this list, and then repeat it again:\n{_LIST}\n{_LIST}\n",
    "code": "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n",
    "story": "Write a short story about a lighthouse keeper who finds a message in a bottle.",
}
SETTINGS = [(1, 2, 0.8), (1, 4, 0.5), (1, 4, 0.9), (2, 3, 0.7), (2, 5, 0.9), (4, 2, 0.5), (4, 4, 0.8), (8, 1, 0.8)]
SETTINGS += [(8, 3, 0.6), (16, 2, 0.9)]
"""Sequences, drafts of each, and how often a draft is right."""


class Knowing:
    """Proposes ``number`` tokens behind each sequence; each of them is right with probability ``share``."""

    def __init__(self, texts: Sequence[list[int]], number: int, share: float, vocab_size: int) -> None:
        self._texts, self._number, self._share, self._vocab_size = texts, number, share, vocab_size
        self._rng = random.Random(0)

    def propose(self, sequence: TokenSequence) -> list[int]:
        """See Proposer.propose. Of a text that it does not know it is wrong."""
        tokens, rng = sequence.token_ids, self._rng
        text = next((each for each in self._texts if each[: len(tokens)] == tokens), [])
        right = text[len(tokens) : len(tokens) + self._number]
        right += [-1] * (self._number - len(right))
        is_right = (token >= 0 and rng.random() < self._share for token in right)
        return [token if own else rng.randrange(self._vocab_size) for token, own in zip(right, is_right, strict=True)]


class PlainSteps:
    """A step's time by its number of tokens, between plain steps of so many sequences."""

    def __init__(self, seconds_by_tokens: dict[int, float]) -> None:
        self._tokens, self._seconds = list(seconds_by_tokens), list(seconds_by_tokens.values())

    def seconds(self, num_tokens: float, *_: float) -> float:
        """See StepSeconds.seconds."""
        return float(np.interp(num_tokens, self._tokens, self._seconds))


@dataclass
class Steps:
    """Steps in which every sequence decoded. seconds: of each; the others are sums over all of them."""

    seconds: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_sequences: int = 0
    num_drafts: int = 0
    num_accepted: int = 0

    @property
    def step_seconds(self) -> float:
        """The lower quartile."""
        return sorted(self.seconds)[len(self.seconds) // 4]

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / len(self.seconds) / self.step_seconds

    def row(self, context: float) -> Row:
        """The counts as a sweep's row has them; the requests' first tokens are not among these."""
        return {
            "completed": 1,
            "num_steps": len(self.seconds),
            "total_input_tokens": round(context) - (self.num_tokens + 1) // 2,
            "total_output_tokens": self.num_tokens + 1,
            "num_accepted_tokens": self.num_accepted,
            "num_draft_tokens": self.num_drafts,
        }


CLOCK = [time.perf_counter]
"""What times are read from."""


def run(
    llm: LLM, prompts: Sequence[list[int]], num_tokens: int, steps: Steps, temperature: float = 0.0
) -> list[list[int]]:
    """Answer ``prompts``, and add the steps until the first answer is complete; the whole texts."""
    engine, params = llm.engine, SamplingParams(temperature=temperature, max_tokens=num_tokens, seed=1, ignore_eos=True)
    requests = [engine.add_request(str(index), prompt, params) for index, prompt in enumerate(prompts)]
    sequences = [request.sequences[0] for request in requests]
    while engine.has_unfinished_requests():
        before = [each.num_output_tokens for each in sequences]
        counted, accepted = engine.draft_counts.num_draft_tokens, engine.draft_counts.num_accepted_tokens
        began = CLOCK[0]()
        outputs = engine.step()
        seconds = CLOCK[0]() - began
        if min(before) and not any(output.finished for output in outputs) and len(outputs) == len(sequences):
            steps.seconds.append(seconds)
            steps.num_tokens += sum(each.num_output_tokens for each in sequences) - sum(before)
            steps.num_sequences += len(sequences)
            steps.num_drafts += engine.draft_counts.num_draft_tokens - counted
            steps.num_accepted += engine.draft_counts.num_accepted_tokens - accepted
    return [each.token_ids for each in sequences]


def ngram(number: int, shortest: int, longest: int) -> dict[str, Any]:
    lookup = {"prompt_lookup_min": shortest, "prompt_lookup_max": longest}
    return {"method": "ngram", "num_speculative_tokens": number, **lookup}


def compare_texts(llm: LLM, rounds: int, num_tokens: int, temperature: float) -> None:
    """N-grams on real text."""
    print("text        sequences  n-gram       tokens/s plain  with drafts  gain  accepted per step")
    for name, text in TEXTS.items():
        tokens = llm.tokenizer.encode(text)
        for count in (1, 8):
            prompts = [[*tokens, *llm.tokenizer.encode(f" {index}")] for index in range(count)]
            for number, shortest, longest in ((4, 5, 5), (4, 2, 4)):
                plain, drafted = Steps(), Steps()
                for _ in range(rounds):
                    for config, steps in ((None, plain), (ngram(number, shortest, longest), drafted)):
                        llm.engine.reconfigure(speculative_config=config)
                        run(llm, prompts, num_tokens, steps, temperature)
                rates = [each.num_tokens / sum(each.seconds) for each in (plain, drafted)]
                print(
                    f"{name:<12}{count:>9}  {number} of {shortest}..{longest}{rates[0]:>18.1f}{rates[1]:>13.1f}"
                    f"{rates[1] / rates[0]:>6.2f}{drafted.num_accepted / drafted.num_sequences:>19.2f}"
                )


def calibrated(llm: LLM, profile: Path, model: str) -> StepTimes:
    """The load model with the coefficients of ``profile``."""
    speed = Speed.from_json(json.loads(profile.read_text(encoding="utf-8"))["coefficients"])
    memory = llm.engine.memory
    kv_bytes = memory.block_bytes / memory.block_size
    return StepTimes(step_shape(resolve_model(model), element_bytes=2, kv_bytes_per_token=kv_bytes), speed)


def plain_steps(llm: LLM, rounds: int, num_tokens: int, prompts: Sequence[list[int]]) -> PlainSteps:
    """Plain steps of 1 to 48 sequences, in turn."""
    sizes = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
    found = {size: Steps() for size in sizes}
    llm.engine.reconfigure(speculative_config=None)
    for _ in range(rounds):
        for size, steps in found.items():
            run(llm, prompts[:size], num_tokens // 2, steps)
    return PlainSteps({size: steps.step_seconds for size, steps in found.items()})


def compare_settings(llm: LLM, profile: Path | None, rounds: int, num_tokens: int, model: str) -> None:
    """Ten settings, each beside its prediction."""
    vocab_size, rng = llm.engine.model.config.vocab_size, random.Random(1)
    all_prompts = [[rng.randrange(vocab_size) for _ in range(64)] for _ in range(48)]
    own = profile is None
    clock = plain_steps(llm, rounds, num_tokens, all_prompts) if own else calibrated(llm, profile, model)  # type: ignore[arg-type]
    print("sequences  drafts  accepted  ms plain  ms with drafts  gain  predicted  measured / predicted")
    for count, number, share in SETTINGS:
        prompts = all_prompts[:count]
        llm.engine.reconfigure(speculative_config=None)
        texts = run(llm, prompts, num_tokens + number, Steps())
        plain, drafted = Steps(), Steps()
        for _ in range(rounds):
            llm.engine.reconfigure(speculative_config=None)
            run(llm, prompts, num_tokens, plain)
            llm.engine.reconfigure(speculative_config=ngram(number, 1, 1))
            llm.engine.serving.loop._proposer = Knowing(texts, number, share, vocab_size)
            run(llm, prompts, num_tokens, drafted)
        gain = drafted.tokens_per_second / plain.tokens_per_second
        predicted = gain_at(clock, drafted.row(64 + num_tokens / 2)) or 0.0
        print(
            f"{count:>9}{number:>8}{drafted.num_accepted / drafted.num_drafts:>10.2f}{1e3 * plain.step_seconds:>10.2f}"
            f"{1e3 * drafted.step_seconds:>16.2f}{gain:>6.2f}{predicted:>11.2f}{gain / predicted:>22.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device-memory", default="3GiB")
    parser.add_argument("--settings", action="store_true", help="ten settings beside their prediction")
    parser.add_argument("--cpu-time", action="store_true", help="processor time on one thread")
    parser.add_argument("--calibration", type=Path, help="a profile that kvplan calibrate wrote of this device")
    parser.add_argument("--temperature", type=float, default=0.0, help="of real text; 0: greedy, which repeats itself")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-tokens", type=int, default=64)
    asked = parser.parse_args()
    if asked.cpu_time:
        torch.set_num_threads(1)
        CLOCK[0] = time.process_time
    settings = {"max_num_seqs": 48, "max_num_batched_tokens": 512, "max_model_len": 1024, "quantization": "none"}
    with LLM(asked.model, device="cpu", device_memory=asked.device_memory, **settings) as llm:
        if asked.calibration is None and not asked.settings:
            compare_texts(llm, asked.rounds, asked.num_tokens, asked.temperature)
        else:
            compare_settings(llm, asked.calibration, asked.rounds, asked.num_tokens, asked.model)


if __name__ == "__main__":
    main()

"""A server that speculates answers as one that does not, and shows vLLM's counts of what was accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guessing import NGRAM
from server_process import ServerProcess, plain
from streams import NUM_STREAMS, PROMPTS, all_streamed

from kvplan_engine import LLM, SamplingParams

pytestmark = pytest.mark.xdist_group("server")
REPEATING = "the keys and values of the keys and values of the keys and values"


@pytest.fixture(scope="module")
def speculating(model_path: Path) -> Iterator[ServerProcess]:
    settings = {"speculative_config": NGRAM, "dtype": "float32"}
    with ServerProcess(str(model_path), served_model_names=["small"], settings=settings) as server:
        yield server


def counts(server: ServerProcess) -> dict[str, float]:
    """Read /metrics: values by name and position."""
    found = {}
    for (name, labels), value in server.metrics().items():
        if name.startswith("vllm:spec_decode_") and not name.endswith("_created"):
            position = "".join(f" {value}" for _, value in labels)
            found[name.removeprefix("vllm:spec_decode_").removesuffix("_total") + position] = value
    return found


def test_streams_have_the_tokens_that_come_without_speculation(speculating: ServerProcess, llm: LLM) -> None:
    fields: list[dict[str, Any]] = [
        {"temperature": 0.0 if number % 2 else 0.9, "seed": number, "max_tokens": 8 + number % 17}
        for number in range(NUM_STREAMS)
    ]
    params = [SamplingParams(**own) for own in fields]
    expected = [
        (output.outputs[0].token_ids, plain(output.outputs[0].text)) for output in llm.generate(PROMPTS, params)
    ]
    assert asyncio.run(all_streamed(speculating, fields)) == expected
    assert speculating.wait_until_idle()["num_used_blocks"] == 0


def test_log_probabilities_belong_to_their_tokens(speculating: ServerProcess, llm: LLM) -> None:
    fields: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40, "logprobs": 2}
    (expected,) = llm.generate([REPEATING], SamplingParams(**fields))
    (choice,) = speculating.complete(REPEATING, return_token_ids=True, **fields)["choices"]
    own = expected.outputs[0]
    assert choice["token_ids"] == own.token_ids and choice["finish_reason"] == own.finish_reason
    want = [alternatives[token] for token, alternatives in zip(own.token_ids, own.logprobs or [], strict=True)]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(want, abs=1e-4)


def test_metrics_count_drafts_as_vllm_does(speculating: ServerProcess, server: ServerProcess) -> None:
    before = counts(speculating)
    speculating.complete(REPEATING, temperature=0.0, max_tokens=40, ignore_eos=True)
    after = counts(speculating)
    grown = {name: after[name] - before[name] for name in after}
    positions = [grown[f"num_accepted_tokens_per_pos {position}"] for position in range(4)]
    assert 0 < grown["num_drafts"] <= grown["num_draft_tokens"] <= 4 * grown["num_drafts"]
    assert sum(positions) == grown["num_accepted_tokens"] <= grown["num_draft_tokens"]
    assert positions == sorted(positions, reverse=True)
    assert counts(server) == {}, "vLLM shows none without speculation"

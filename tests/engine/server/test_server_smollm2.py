"""A trained model from a GGUF file: real text, its own chat template, through OpenAI's client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from server_process import ServerProcess

from kvplan_engine import LLM, SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("smollm2")]
SETTINGS = {"device_memory": "1GiB", "max_model_len": 512, "dtype": "float32", "max_num_seqs": 16}
TEXTS = ["The capital of France is", "Die Hauptstadt von Österreich ist", "def fibonacci(n):", "日本の首都は"]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(str(smollm2_path), SETTINGS, served_model_names=["smollm2"]) as server:
        yield server


def test_real_text_streams_as_the_engine_answers_it(smollm2: ServerProcess, smollm2_path: Path) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24)
    with LLM(str(smollm2_path), device="cpu", **SETTINGS) as llm:
        expected = [output.outputs[0] for output in llm.generate(TEXTS, params)]
    fields = {"max_tokens": 24, "temperature": 0.0, "return_token_ids": True}
    for text, answer in zip(TEXTS, expected, strict=True):
        events = smollm2.events("/v1/completions", {"prompt": text, **fields})[:-1]
        assert [token for event in events for token in event["choices"][0]["token_ids"]] == answer.token_ids
        assert "".join(event["choices"][0]["text"] for event in events) == answer.text
    assert "Paris" in expected[0].text


def test_a_chat_follows_the_models_own_template(smollm2: ServerProcess) -> None:
    with openai.OpenAI(base_url=smollm2.url + "/v1", api_key="any") as client:
        question = {"role": "user", "content": "What is the capital of France?"}
        answer = client.chat.completions.create(
            model="smollm2",
            messages=[question],  # type: ignore[list-item]
            max_tokens=24,
            temperature=0,
        )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    rendered = smollm2.post("/tokenize", {"messages": [question]}).json["tokens"]
    text = smollm2.post("/detokenize", {"tokens": rendered}).json["prompt"]
    assert text.endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")

"""What people who know vLLM's offline interface type: chat, get_tokenizer, use_tqdm, metrics, quantization="gguf"."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_answers import small_llm
from small_models import Checkpoint

from kvplan_engine import LLM, EngineError, SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("smollm2")]

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
SHORT = SamplingParams(temperature=0.0, max_tokens=8)


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_path), dtype="float32", device="cpu", quantization="gguf", max_model_len=256) as llm:
        yield llm


def test_a_conversation_is_answered_by_the_models_own_template(llm: LLM) -> None:
    other = [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Is water wet?"}]
    one, both = llm.chat(QUESTION, SHORT), llm.chat([QUESTION, other], SHORT)
    assert one[0].outputs[0].text == "The capital of France is Paris."
    assert both[0].outputs[0].text == one[0].outputs[0].text
    assert both[1].prompt is not None and both[1].prompt.startswith("<|im_start|>system\nAnswer in one word.<|im_end|>")
    tokens = llm.get_tokenizer().apply_chat_template(QUESTION, add_generation_prompt=True)["input_ids"]
    assert one[0].prompt_token_ids == tokens


def test_an_answer_that_was_begun_is_continued(llm: LLM) -> None:
    begun = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]
    (output,) = llm.chat(begun, SHORT, add_generation_prompt=False, continue_final_message=True)
    assert output.outputs[0].text.startswith(" Paris")


def test_another_template_is_taken(llm: LLM) -> None:
    template = "{% for message in messages %}{{ message.content | upper }}{% endfor %}"
    (output,) = llm.chat(QUESTION, SHORT, chat_template=template)
    assert output.prompt == "WHAT IS THE CAPITAL OF FRANCE?"


@pytest.mark.parametrize("messages", ["Hello", [], [{"content": "Hello"}], [["Hello"]], [[]]])
def test_what_is_no_conversation_is_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(EngineError, match="list of messages") as refused:
        llm.chat(messages, SHORT)
    assert "role" in (refused.value.hint or "")


def test_a_template_that_refuses_is_one_sentence(llm: LLM) -> None:
    with pytest.raises(EngineError, match="does not take these messages: only one"):
        llm.chat(QUESTION, SHORT, chat_template="{{ raise_exception('only one') }}")


def test_times_of_a_request_are_in_order(llm: LLM) -> None:
    before, epoch = time.perf_counter(), time.time()
    params = SamplingParams(n=2, temperature=1.0, max_tokens=5, ignore_eos=True)
    outputs = llm.generate(["Once upon a time"] * 3, params)
    for output in outputs:
        metrics = output.metrics
        assert metrics is not None
        moments = [metrics.queued_ts, metrics.scheduled_ts, metrics.first_token_ts, metrics.last_token_ts]
        assert moments == sorted(moments)
        assert before < moments[0] and moments[-1] < time.perf_counter()
        assert metrics.first_token_ts < metrics.last_token_ts
        assert metrics.first_token_latency == metrics.first_token_ts - metrics.queued_ts
        assert metrics.arrival_time == pytest.approx(epoch, abs=5)
        assert (metrics.num_generation_tokens, metrics.num_preemptions) == (10, 0)


class Bar:
    """Counts what it is told."""

    def __init__(self, **options: Any) -> None:
        self.total, self.n = options["total"], 0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended_at = self.n

    def update(self, more: int) -> None:
        self.n += more


def test_progress_is_shown_by_a_bar_of_the_callers(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    bars: list[Bar] = []

    def bar(**options: Any) -> Bar:
        bars.append(Bar(**options))
        return bars[-1]

    params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in (2, 6, 4)]
    llm.generate(["One", "Two", "Three"], params, use_tqdm=bar)
    assert [(each.total, each.ended_at) for each in bars] == [(3, 3)]
    llm.generate("Four", SHORT, use_tqdm=False)
    llm.generate("Five", SHORT)
    assert capsys.readouterr().err == ""  # a file is no terminal


def test_gguf_is_a_format_of_files_alone(checkpoints: dict[str, Checkpoint]) -> None:
    with pytest.raises(EngineError, match=r"quantization 'gguf' is for a \.gguf file"):
        LLM(str(checkpoints["llama"].path), quantization="gguf")


def test_a_model_without_a_template_says_so(checkpoints: dict[str, Checkpoint]) -> None:
    with small_llm(checkpoints["llama"].path) as llm, pytest.raises(EngineError, match="tokenizer"):
        llm.chat(QUESTION, SHORT)

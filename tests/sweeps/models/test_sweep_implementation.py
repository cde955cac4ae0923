"""``--model-impl``: what is expected to compute a model, what is refused before anything runs, what a row claims."""

from __future__ import annotations

import pytest

from kvplan.catalog.architectures import architectures
from kvplan.errors import KvplanError, UsageError
from kvplan.runs.answers.summary import prediction_errors
from kvplan.runs.rows import empty_row
from kvplan.sweeps.feasibility import expected_implementation, refuse_architecture
from kvplan.sweeps.options import SweepOptions


def test_auto_is_native_wherever_the_decoder_can() -> None:
    assert expected_implementation("LlamaForCausalLM") == "native"
    assert expected_implementation("LlamaForCausalLM", model_impl="transformers") == "transformers"
    assert expected_implementation("LlamaForCausalLM", (), model_impl="auto") == "transformers"
    assert expected_implementation("LlamaForCausalLM", (), model_impl="native") is None


@pytest.mark.parametrize(("model_impl", "sentence"), [("auto", "does not support"), ("transformers", "does not run")])
def test_what_nothing_computes_is_refused(model_impl: str, sentence: str) -> None:
    row = architectures()["T5ForConditionalGeneration"]
    assert not row.native and row.transformers is None
    with pytest.raises(KvplanError, match=sentence):
        refuse_architecture("T5ForConditionalGeneration", model_impl=model_impl)


def test_transformers_computes_whole_models() -> None:
    for options in ({"load_format": "none"}, {"load_format": "dummy", "dummy_layers": "shared"}):
        with pytest.raises(UsageError, match="computes whole models"):
            SweepOptions("gpt2", model_impl="transformers", **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Unknown --model-impl 'vllm'"):
        SweepOptions("gpt2", model_impl="vllm")


def test_rows_without_a_prediction_are_not_compared_with_one() -> None:
    measured = empty_row()
    measured.update(status="ok", num_blocks_total=70, block_bytes=16, block_bytes_predicted=16, output_throughput=5.0)
    predicted = measured.copy()
    predicted.update(predicted_status="ok", num_blocks_predicted=70, pred_output_throughput=4.0)
    errors = prediction_errors([measured, predicted])
    assert errors["num_compared"] == errors["num_blocks_equal"] == errors["num_outcomes_compared"] == 1
    assert errors["output_throughput_median_error_pct"] == pytest.approx(20.0)

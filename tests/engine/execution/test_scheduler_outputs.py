"""Outputs made when they are looked at are those of the tokens; short paths end sequences as long ones do."""

from __future__ import annotations

from engine_answers import small_llm
from small_models import Checkpoint

from kvplan_engine import SamplingParams
from kvplan_engine.requests.outputs import PlainOutputs


def test_outputs_of_plain_steps_and_of_ending_ones(checkpoints: dict[str, Checkpoint]) -> None:
    engine = small_llm(checkpoints["gpt2"].path, max_model_len=64).engine
    lengths = {"a": 5, "b": 9, "c": 9}
    requests = {
        name: engine.add_request(
            name, [ord(name)] * 3, SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
        )
        for name, length in lengths.items()
    }
    seen: dict[str, list[int]] = {name: [] for name in lengths}
    kept, num_plain = [], 0
    while engine.has_unfinished_requests():
        outputs = engine.step()
        num_plain += isinstance(outputs, PlainOutputs)
        kept.append((outputs, [(output.request_id, output.new_token_ids) for output in outputs]))
        for output in outputs:
            assert output.index == 0
            seen[output.request_id] += output.new_token_ids
            is_last = len(seen[output.request_id]) == lengths[output.request_id]
            assert output.finished == is_last
            assert output.finish_reason == ("length" if is_last else None)
    assert seen == {name: request.sequences[0].output_token_ids for name, request in requests.items()}
    assert num_plain >= 3
    for outputs, then in kept:  # still the same when the engine has gone on
        assert [(output.request_id, output.new_token_ids) for output in outputs] == then
        assert len(outputs) == len(then)
        assert [outputs[row].new_token_ids for row in range(len(outputs))] == [tokens for _, tokens in then]
        assert [output.new_token_ids for output in outputs[-1:]] == [then[-1][1]]

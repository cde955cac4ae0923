"""The last layer computed for the sampled rows alone: the logits and the pool are those of computing it for all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_layer_run import GPT2, LLAMA, make_engine

from kvplan_engine import SamplingParams
from kvplan_engine.execution.inputs.batch import BatchBuilder
from kvplan_engine.models.step_batch import StepBatch


def _run(
    config: dict[str, object], one_call: bool, narrowed: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[torch.Tensor], torch.Tensor, list[int | None]]:
    """Logits of each step, the pool afterwards, and how many rows each step's last layer had (None: all)."""
    engine = make_engine(config, "float32", one_call)
    runner = engine.serving.runner
    logits, rows = [], []
    if not narrowed:
        monkeypatch.setattr(BatchBuilder, "_batch", _of_all_rows)

    def forward(batch: StepBatch) -> torch.Tensor:
        result = type(runner).forward(runner, batch)
        logits.append(result.clone())
        rows.append(None if batch.sampled_attention is None else len(batch.sampled))
        return result

    monkeypatch.setattr(runner, "forward", forward)
    for index, length in enumerate((60, 3, 17, 1)):
        prompt = [(7 * index + 3 * i) % 190 for i in range(length)]
        engine.add_request(str(index), prompt, SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
    kv = runner.kv.planes.view(runner.kv.dtype).clone()
    engine.close()
    monkeypatch.undo()
    return logits, kv, rows


def _of_all_rows(self: BatchBuilder, *arguments: Any) -> StepBatch:
    *before, _sampled_starts, sampled, longest = arguments
    return _BATCH(self, *before, None, sampled, longest)


_BATCH = BatchBuilder._batch


@pytest.mark.parametrize("one_call", [True, False], ids=["one-call", "loop"])
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_rows_nobody_reads_change_nothing(
    config: dict[str, object], one_call: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, kv, rows = _run(config, one_call, True, monkeypatch)
    expected, expected_kv, all_rows = _run(config, one_call, False, monkeypatch)
    assert set(all_rows) == {None}
    assert 0 in rows, "no step computed only a piece of a prompt"
    assert any(rows), "no step sampled behind a prompt"
    assert None in rows, "no step only decoded"
    assert [each.shape for each in logits] == [each.shape for each in expected]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    assert torch.equal(kv, expected_kv)

"""The device: what a dropped engine left, and where rows of draws are sent."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_gpu import FakeGpu

from kvplan_engine.blocks.block_pool import BlockPool
from kvplan_engine.blocks.block_table import BlockTable
from kvplan_engine.blocks.layout import uniform_layout
from kvplan_engine.device import cuda
from kvplan_engine.device.cuda import CudaDevice
from kvplan_engine.execution.choosing import DeviceDraws
from kvplan_engine.kernels.cuda.launching.emulation import EmulatedRuntime
from kvplan_engine.kernels.cuda.sampling import DRAW_ROW, IN_PROMPT, CudaDraws
from kvplan_engine.memory.breakdown import BufferSpec
from kvplan_engine.memory.step_buffers import DRAWS, TOKEN_COUNTS
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.requests.request import Request, Sequence
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.requests.step_plan import StepPlan

GIB = 1024**3


class Cyclic:
    """Memory that only the garbage collector finds, as a dropped engine's is: its loop holds one of its methods."""

    def __init__(self, held: list[int]) -> None:
        self._held = held
        self._itself = self

    def __del__(self) -> None:
        self._held.append(40 * GIB)


def test_what_a_dropped_engine_left_is_given_back_before_the_device_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    cached = [40 * GIB]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(is_integrated=False))
    monkeypatch.setattr(cuda, "_make_context", lambda device: None)

    def empty_cache() -> None:
        cached[0] -= sum(freed)  # only what no object holds any more

    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 * GIB - cached[0], 80 * GIB))
    Cyclic(freed)
    assert CudaDevice(None).overhead_bytes < GIB


VOCABULARY, ROWS = 16, 3
BLOCKS = BlockPool(1, uniform_layout(16))
GREEDY = SamplingParams(temperature=0.0)
RANDOM = SamplingParams(top_p=0.5)
PENALISED = SamplingParams(presence_penalty=1.0, max_tokens=9)


class Places:
    """DeviceDraws over a workspace of three rows."""

    def __init__(self) -> None:
        specs = [BufferSpec(DRAWS, (ROWS, DRAW_ROW.itemsize), "uint8")]
        specs.append(BufferSpec(TOKEN_COUNTS, (ROWS, VOCABULARY), "int16"))
        self.workspace, self._gpu = Workspace(specs, torch.device("cpu")), FakeGpu()
        kernel = CudaDraws(EmulatedRuntime())
        self.draws = DeviceDraws(kernel, self._gpu, self.workspace, VOCABULARY, seed=0)
        self._before: list[Sequence] = []

    def step(self, *sequences: Sequence) -> int:
        """A step in which these decode; how often something was sent for it."""
        fresh = [row for row, each in enumerate(sequences) if [each] != self._before[row : row + 1]]
        self._before, marks = list(sequences), self._gpu.num_marks
        assert self.draws.prepare(StepPlan(decodes=self._before, fresh_rows=fresh, num_tokens=len(sequences)))
        return self._gpu.num_marks - marks

    @property
    def rows(self) -> np.ndarray:
        """As the device has them."""
        return self.workspace[DRAWS].numpy().view(DRAW_ROW).reshape(-1)

    def counts_of(self, sequence: Sequence) -> list[int]:
        """What the device knows of its tokens."""
        row = int(self.rows[self._before.index(sequence)]["counts_row"]) - 1
        return [int(code) & 0xFFFF for code in self.workspace[TOKEN_COUNTS][row]]


def sequence_of(params: SamplingParams, *answer: int) -> Sequence:
    return Sequence(Request("r", [2, 5], params), 0, [2, 5, *answer], BlockTable(BLOCKS))


def test_rows_are_sent_when_sequences_come_move_or_go() -> None:
    places, one, two = Places(), sequence_of(RANDOM), sequence_of(RANDOM)
    assert places.step(one) == 1
    assert places.step(one) == 0, "the same again"
    assert places.step(one, two) == 1
    assert places.rows["key"].tolist() == [*places.rows["key"][:2].tolist(), 0]
    last = places.rows["key"][1]
    assert places.step(two) == 1
    assert places.rows["key"].tolist() == [last, 0, 0], "a row that nobody has takes the likeliest token"


def test_greedy_sequences_send_nothing() -> None:
    places = Places()
    assert [places.step(*(sequence_of(GREEDY) for _ in range(number))) for number in (1, 3, 2)] == [0, 0, 0]


def test_counts_begin_with_what_was_said_and_stay_with_the_sequence() -> None:
    places, one, two = Places(), sequence_of(PENALISED, 7, 7), sequence_of(PENALISED)
    places.step(one, two)
    of_one = places.counts_of(one)
    assert {token: code for token, code in enumerate(of_one) if code} == {2: IN_PROMPT, 5: IN_PROMPT, 7: 2}
    places.workspace[TOKEN_COUNTS][places.rows[0]["counts_row"] - 1, 9] += 1  # as the kernel does
    places.step(two)
    places.step(two, one)
    assert places.counts_of(one) == [1 if token == 9 else code for token, code in enumerate(of_one)]


def test_a_sequence_that_lost_its_row_sends_its_counts_anew() -> None:
    places, one = Places(), sequence_of(PENALISED, 7)
    places.step(one)
    places.step(*(sequence_of(PENALISED, 8) for _ in range(ROWS)))
    one.append_token(9)
    places.step(one)
    assert [token for token, code in enumerate(places.counts_of(one)) if code & 0x3FFF] == [7, 9]


def test_counts_are_not_begun_while_a_token_is_on_its_way() -> None:
    places, one = Places(), sequence_of(PENALISED, 7)
    one.num_tokens += 1
    with pytest.raises(AssertionError, match="would not be counted"):
        places.step(one)

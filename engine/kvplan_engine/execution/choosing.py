"""Which tokens a step gives: by the kernel that draws, where there is one, else the likeliest or the sampler's."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace

import numpy as np
import torch

from kvplan_engine.device.device import Device
from kvplan_engine.execution.inputs.staging import InTurn, PendingTokens, TokenStage
from kvplan_engine.kernels.cuda.sampling import DRAW_ROW, CudaDraws, StepTokens
from kvplan_engine.kernels.interface import Ops
from kvplan_engine.memory.step_buffers import DRAWS, TOKEN_COUNTS
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.step_batch import StepBatch
from kvplan_engine.requests.request import Sequence
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.sampling.draw_rows import changes_logits, draw_row, logit_changes
from kvplan_engine.sampling.sampler import SampledTokens, Sampler
from kvplan_engine.sampling.token_logprobs import PendingLogprobs, queue_logprobs
from kvplan_engine.scheduling.running_sequences import num_forks

# How tokens are chosen on a device that runs behind the host: what the kernel reads, where a replayed step finds it.
#
# A row of the workspace's ``draws`` says how one sequence's token is chosen. Decoding sequences keep their rows, and
# what
# they ask for does not change with their position, so a step sends rows only when sequences have come, moved or gone.
#
# A sequence whose logits change with what it has said, or by a bias, has a row of ``token_counts`` as well, for as long
# as no other needs it: the kernel counts the tokens that it chooses, so the host need not know them. Its first values
# are sent when its tokens are known: at its first draw, or when it draws again after others took its row.


_NUM_COPIES = 2  # see staging


@dataclass(frozen=True, slots=True)
class _CountsRow:
    """Row ``index`` of the counts. listed [bytes] uint8: of LISTED, on the device."""

    index: int
    num_listed: int
    listed: torch.Tensor


class DeviceDraws:
    """The rows of the sequences that draw, on ``device``, and the kernel that draws for them."""

    def __init__(self, kernel: CudaDraws, device: Device, workspace: Workspace, vocab_size: int, seed: int) -> None:
        self._kernel, self._device = kernel, device
        self._rows, self._counts = workspace[DRAWS], workspace[TOKEN_COUNTS]
        self._vocab_size, self._seed = vocab_size, seed
        self._host = np.zeros(self._rows.shape[0], DRAW_ROW)
        self._bytes = self._host.view(np.uint8).reshape(len(self._host), -1)
        self._stage = InTurn(device, [device.host_buffer(self._rows) for _ in range(_NUM_COPIES)])
        self.clear()

    def clear(self) -> None:
        """Every row takes the likeliest token, whatever the workspace held."""
        self._host[:] = 0
        self._rows.zero_()
        self._num_rows = 0  # those behind it are zeros
        self._is_placed = False  # whether they are the step's
        self._of_sequence: dict[int, _CountsRow] = {}
        self._free = list(range(self._counts.shape[0]))

    def prepare(self, plan: StepPlan) -> bool:
        """Place the sequences of a step before it is started, so that it may be a graph's replay; whether that is done.

        It is not where samples will fork, which they do when the step is committed.
        """
        sampled = [item.sequence for item in plan.chunks if item.needs_sampling]
        self._is_placed = not any(map(num_forks, sampled))
        if self._is_placed:
            self._place(plan.decodes + sampled, plan, num_pending=0)
        return self._is_placed

    def place_forks(self, plan: StepPlan) -> None:
        """Place the sequences of a committed step where ``prepare`` has not."""
        if not self._is_placed:
            self._place(plan.sampled, plan, num_pending=1)

    def draw(self, logits: torch.Tensor, tokens: StepTokens, out: torch.Tensor) -> None:
        """A token for each row of ``out`` [n] int64: see CudaDraws."""
        self._kernel(logits, self._rows, self._counts, tokens, out)

    def _place(self, sequences: Rows[Sequence], plan: StepPlan, num_pending: int) -> None:
        """``sequences`` by row. num_pending: of their tokens, the one that this step is to choose."""
        number, end = len(sequences), max(len(sequences), self._num_rows)
        is_changed = bool(self._bytes[number:end].any())
        self._bytes[number:end] = 0
        self._num_rows = number
        for row in (*plan.fresh_rows, *range(len(plan.decodes), number)):
            wanted = self._row_of(sequences[row], sequences, num_pending)
            is_changed |= bool(self._host[row] != wanted)
            self._host[row] = wanted
        if not is_changed:
            return
        with self._stage.fill() as stage:
            stage[:end].numpy()[:] = self._bytes[:end]
            self._rows[:end].copy_(stage[:end], non_blocking=True)

    def _row_of(self, sequence: Sequence, others: Iterable[Sequence], num_pending: int) -> np.ndarray:
        row = draw_row(sequence, self._seed, self._vocab_size)
        if changes_logits(sequence):
            counts = self._of_sequence.get(sequence.number)
            if counts is None:
                assert sequence.num_pending_tokens == num_pending, "a token is on its way that would not be counted"
                counts = self._of_sequence[sequence.number] = self._send_changes(sequence, self._free_row(others))
            row["counts_row"] = 1 + counts.index
            row["listed"], row["num_listed"] = counts.listed.data_ptr(), counts.num_listed
        return row

    def _free_row(self, others: Iterable[Sequence]) -> int:
        """A row of the counts; one that none of ``others``, which draw in this step, has, where all are taken."""
        if not self._free:
            kept = {sequence.number for sequence in others}
            left = [number for number in self._of_sequence if number not in kept]
            self._free = [self._of_sequence.pop(number).index for number in left]
        return self._free.pop()

    def _send_changes(self, sequence: Sequence, index: int) -> _CountsRow:
        changes, upload = logit_changes(sequence), self._device.upload
        self._counts[index].zero_()
        self._counts[index].index_copy_(0, upload(changes.tokens), upload(changes.codes))
        return _CountsRow(index, len(changes.listed), upload(changes.listed.view(np.uint8)))


@dataclass(frozen=True, slots=True)
class ChosenTokens:
    """A step's tokens on their way to the host; described: what is said of them, None where nobody asks."""

    tokens: PendingTokens
    described: PendingLogprobs | None

    def wait(self) -> SampledTokens:
        """See Waitable.wait."""
        array = self.tokens.wait()
        token_ids: list[int] = array.tolist()
        details = None if self.described is None else self.described.details(token_ids)
        return SampledTokens(token_ids, array, details)


class TokenChooser:
    """See ``step_runner.StepChooser``. draws: None where only the sampler draws."""

    def __init__(
        self, device: Device, ops: Ops, sampler: Sampler, draws: DeviceDraws | None, max_num_seqs: int
    ) -> None:
        self.tokens = TokenStage(device, max_num_seqs)
        self._device, self._ops, self._sampler, self._draws = device, ops, sampler, draws
        self._step: StepTokens | None = None  # of the last step
        self._is_chosen = False  # whether its replay has chosen its tokens

    @property
    def counts_tokens(self) -> bool:
        """See StepChooser.counts_tokens."""
        return self._draws is not None

    def can_choose_ahead(self, plan: StepPlan) -> bool:
        """See StepChooser.can_choose_ahead."""
        if self._draws is not None:
            return not plan.wants_prompt_logprobs
        return plan.is_plainly_greedy and not plan.needs_token_details

    def choose_ahead(self, logits: torch.Tensor, plan: StepPlan) -> ChosenTokens:
        """See StepChooser.choose_ahead: the tokens stay on the device and are sent to the host."""
        chosen, described = self.tokens.chosen[: len(plan.sampled)], None
        if not self._is_chosen:
            self._choose(logits, plan, chosen)
        if plan.needs_token_details:
            described = queue_logprobs(self._sampler, self._device, logits, plan, chosen)
        return ChosenTokens(self.tokens.send(len(plan.sampled)), described)

    def sample_step(self, logits: torch.Tensor, plan: StepPlan) -> SampledTokens:
        """See StepChooser.sample_step."""
        if self._draws is None or not plan.sampled:
            return self._sampler.sample_step(logits, plan)
        return self.choose_ahead(logits, plan).wait()

    # ---- around a step

    def clear(self) -> None:
        """Forget all sequences: somebody else has written to the workspace."""
        if self._draws is not None:
            self._draws.clear()

    def prepare(self, plan: StepPlan) -> bool:
        """Before the step is started. Whether a captured step may choose its tokens."""
        return self._draws is None or self._draws.prepare(plan)

    def follow(self, batch: StepBatch) -> None:
        """``batch`` is the step that has been started."""
        self._step = StepTokens(batch.positions, batch.sampled_rows)
        self._is_chosen = batch.graph is not None

    def choose_in_graph(self, logits: torch.Tensor, batch: StepBatch) -> None:
        """What is captured of a step: a token for each row of ``logits`` [rows, vocab_size]."""
        chosen = self.tokens.chosen[: logits.shape[0]]
        if self._draws is None:
            self._ops.argmax_rows(logits, chosen)
        else:
            self._draws.draw(logits, StepTokens(batch.positions, batch.sampled_rows), chosen)

    def _choose(self, logits: torch.Tensor, plan: StepPlan, chosen: torch.Tensor) -> None:
        rows = None if plan.logits_rows is None else self._device.upload(np.array(plan.logits_rows))
        if self._draws is not None:
            assert self._step is not None
            self._draws.place_forks(plan)
            self._draws.draw(logits, replace(self._step, logits_rows=rows), chosen)
        elif rows is None:
            self._ops.argmax_rows(logits, chosen)
        else:
            torch.index_select(self._sampler.likeliest(logits), 0, rows, out=chosen)

"""Which tokens a step gives: by the kernel that draws, where there is one, else the likeliest or the sampler's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from kvplan_engine.device.device import Device
from kvplan_engine.execution.choosing.draws import DeviceDraws
from kvplan_engine.execution.inputs.staging import PendingTokens, TokenStage
from kvplan_engine.kernels.cuda.sampling import StepTokens
from kvplan_engine.kernels.interface import Ops
from kvplan_engine.models.step_batch import StepBatch
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.sampling.sampler import SampledTokens, Sampler
from kvplan_engine.sampling.token_logprobs import PendingLogprobs, queue_logprobs


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

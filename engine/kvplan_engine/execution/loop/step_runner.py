"""What the step loop needs of a runner: see ModelRunner, which computes steps, and CapacityRunner, which does not."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np

from kvplan_engine.offload.disk_tier import DiskTier
from kvplan_engine.offload.mover import Mover
from kvplan_engine.requests.step_plan import StepPlan
from kvplan_engine.sampling.sampler import SampledTokens

# Who wants to know what each step does and where its time goes: see ``Engine.observe_steps``. No torch.
#
# Times are the host's. Where the device works by itself (a GPU), ``forward`` and ``sample`` queue work, and ``wait`` is
# the time until the device has done it.


Phase = Literal["schedule", "transfer", "prepare", "forward", "commit", "sample", "count", "wait", "process"]
"""Parts of a step, in the order in which they run; not every step has all.

schedule: who runs. transfer: blocks copied, swapped or fetched. prepare: the batch's index buffers. forward: the model.
commit: what is known of the next step before its tokens are. sample: the next tokens. count: StepStats. wait: until the
tokens can be read. process: they are appended to their sequences, some of which are finished.
"""


class StepObserver(Protocol):
    """Is told everything in the thread that steps, so it must be quick."""

    def began(self) -> None:
        """A step begins."""

    def planned(self, plan: StepPlan) -> None:
        """What the step computes. The plan is filled in further and must not be kept."""

    def ended(self, phase: Phase) -> None:
        """What ran since the last call was ``phase``."""


class Unobserved:
    """Nobody wants to know."""

    def began(self) -> None:
        pass

    def planned(self, plan: StepPlan) -> None:
        pass

    def ended(self, phase: Phase) -> None:
        pass


UNOBSERVED = Unobserved()


class Waitable(Protocol):
    """Tokens on their way to the host."""

    def wait(self) -> SampledTokens:
        """The tokens, with what the requests want to know of each; waits until their step is done."""
        ...


class StepChooser(Protocol):
    """Chooses the tokens of steps that have been committed."""

    @property
    def counts_tokens(self) -> bool:
        """Whether penalties follow from tokens that the host does not know yet."""
        ...

    def sample_step(self, logits: Any, plan: StepPlan) -> SampledTokens:
        """A token for each of ``plan.sampled``, with what the requests want to know of it."""
        ...

    def can_choose_ahead(self, plan: StepPlan) -> bool:
        """Whether ``choose_ahead`` chooses all that ``plan`` needs."""
        ...

    def choose_ahead(self, logits: Any, plan: StepPlan) -> Waitable:
        """The same, not waited for."""
        ...


class StepRunner(Protocol):
    """Runs steps over one division of the memory. What ``prepare`` and ``forward`` return is between the two."""

    @property
    def chooser(self) -> StepChooser: ...

    @property
    def first_drafts(self) -> dict[int, int]:
        """What ``follow`` proposes behind the last step's tokens, by the numbers of the sequences."""
        ...

    @property
    def num_graph_replays(self) -> int: ...

    def touch(self, num_blocks: int) -> None:
        """Write to the workspace and to the first ``num_blocks`` blocks, whose content is lost."""

    def make_mover(self, num_host_slots: int, disk: DiskTier | None) -> Mover:
        """Who carries out transfers between the pool, ``num_host_slots`` slots of host memory, and files."""
        ...

    def prepare(self, plan: StepPlan, latest: np.ndarray | None = None, before: StepPlan | None = None) -> Any:
        """The step's inputs. before: the plan whose tokens are still pending, if any."""
        ...

    def forward(self, batch: Any) -> Any:
        """One step over ``batch``: what ``chooser`` chooses from."""
        ...

    def follow(self, plan: StepPlan, sampled: SampledTokens) -> None:
        """Let what drafts from hidden states read those of the step that has just been sampled."""

    def take_prompt_logprobs(self, plan: StepPlan) -> None:
        """Give the requests of ``plan`` that ask for them the log-probabilities of their prompts' tokens.

        For the step that has just been sampled, whose logits are lost.
        """
        ...

"""Who wants to know what each step does and where its time goes: see ``Engine.observe_steps``. No torch.

Times are the host's. Where the device works by itself (a GPU), ``forward`` and ``sample`` queue work, and ``wait`` is
the time until the device has done it.
"""

from __future__ import annotations

from typing import Literal, Protocol

from kvplan_engine.requests.step_plan import StepPlan

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

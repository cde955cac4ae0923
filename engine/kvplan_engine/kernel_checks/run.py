"""Runs the checks: each kernel against torch, twins of those that fail, and the fast against what they replace."""

from __future__ import annotations

import gc
import logging
import time
from dataclasses import replace
from functools import partial

import torch

from kvplan_engine.device.allocation import is_context_lost, is_out_of_memory
from kvplan_engine.errors import EngineError
from kvplan_engine.kernel_checks.case import Case, Times, compete
from kvplan_engine.kernel_checks.use import FAMILIES, KernelUse, is_chosen_by_time
from kvplan_engine.kernel_checks.verdicts import Store, Verdict, Verdicts, open_store
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime

logger = logging.getLogger("kvplan_engine")

_NOT_TIMED = "passes; this device's times mean nothing"
_LONGEST_REASON = 160
_ENDED = "a process ended while it tried this (kvplan doctor --again tries it anew)"


class GpuLost(EngineError):
    """A kernel that was tried left the GPU unusable for this process."""


def check_kernels(runtime: CudaRuntime, use: KernelUse, store: Store | None = None, *, anew: bool = False) -> Verdicts:
    """The verdicts on what ``use`` needs: stored ones, or found now. ``runtime`` then avoids what is not used.

    store: None for the user's cache. anew: whatever an earlier process found there, or ended in.
    EngineError where a kernel took the GPU with it: the next start avoids it.
    """
    store = open_store(_key(runtime, use)) if store is None else store
    with store.turn():
        if anew:
            store.end()
        verdicts = None if anew else store.read()
        if verdicts is None:
            verdicts = _Checks(runtime, use, store).run()
            store.write(verdicts)
    runtime.properties = replace(runtime.properties, avoided=runtime.properties.avoided | verdicts.avoided)
    return verdicts


def refuse_or_report(verdicts: Verdicts) -> None:
    """A line in the log for each family that failed; EngineError for one that nothing can stand in for."""
    for each in verdicts.failed:
        logger.warning("%s.", each.sentence())
    needed = next((each for each in verdicts.failed if FAMILIES[each.family].is_needed), None)
    if needed is not None:
        raise EngineError(
            f"{needed.sentence()}.", hint="attention_backend='reference' computes the same in torch, slowly"
        )


def _key(runtime: CudaRuntime, use: KernelUse) -> list[str]:
    """What decides the verdicts besides the sources."""
    properties = replace(runtime.properties, avoided=frozenset())
    return [repr(properties), torch.__version__, runtime.compiler, repr(use)]


class _Checks:
    """One run over all cases. A family is what its worst case is."""

    def __init__(self, runtime: CudaRuntime, use: KernelUse, store: Store) -> None:
        self._runtime, self._use, self._store = runtime, use, store
        self._crashed = store.left_behind()
        self._found: dict[str, Verdict] = {}

    def run(self) -> Verdicts:
        """All cases, then the contests. What was avoided before is again in the end."""
        started, before = time.perf_counter(), self._runtime.properties
        cases = self._use.cases(before)
        try:
            for case in cases:
                self._check(case)
            for case in cases:
                self._time(case)
        except GpuLost:
            raise  # the mark stays: the next start does not try this again
        except BaseException:
            self._store.end()
            raise
        finally:
            self._runtime.properties = before
        self._store.end()
        self._release()
        return Verdicts(tuple(self._found.values()), time.perf_counter() - started)

    def _check(self, case: Case) -> None:
        """``case`` by its families in turn, until one passes."""
        for family in case.families:
            if family in self._avoided:
                continue
            verdict = self._verdict(family, case)
            known = self._found.get(family)
            if known is None or not verdict.passed or _error(verdict) > _error(known):
                self._found[family] = verdict
            if verdict.passed:
                return
            self._avoid(family)

    @property
    def _avoided(self) -> frozenset[str]:
        return self._runtime.properties.avoided

    def _avoid(self, family: str) -> None:
        self._runtime.properties = replace(self._runtime.properties, avoided=self._avoided | {family})

    def _verdict(self, family: str, case: Case) -> Verdict:
        if family == self._crashed:
            return Verdict(family, passed=False, is_used=False, why=_ENDED)
        self._store.begin(family)
        try:
            comparison = case.compare(self._runtime)
            self._synchronise()
            error, tolerance = comparison.largest_error(), comparison.tolerance
        except (EngineError, RuntimeError, ValueError) as failure:
            if is_context_lost(failure):
                raise GpuLost(
                    f"the kernel {family} ended the GPU's work: {_reason(failure)}.",
                    hint="start again: it will not be used",
                ) from failure
            if is_out_of_memory(failure):
                raise
            return Verdict(family, passed=False, is_used=False, why=_reason(failure))
        passed = error <= tolerance
        why = "" if passed else f"an error of {error:.2g}, and {tolerance:.2g} is allowed"
        return Verdict(family, passed, passed, why, error, tolerance)

    def _time(self, case: Case) -> None:
        """A family that has to win is used only if it does."""
        family = case.families[0]
        verdict = self._found.get(family)
        if verdict is None or not verdict.passed or not is_chosen_by_time(family) or verdict.why:
            return
        if self._use.is_asked_for(family):
            self._found[family] = replace(verdict, why="asked for")
        elif case.contest is not None:
            self._found[family] = self._judged(verdict, case)

    def _judged(self, verdict: Verdict, case: Case) -> Verdict:
        assert case.contest is not None
        self._store.begin(verdict.family)
        try:
            times = compete(partial(case.contest, self._runtime), self._runtime.device)
        except (EngineError, RuntimeError) as failure:
            if is_context_lost(failure):
                raise GpuLost(
                    f"timing the kernel {verdict.family} ended the GPU's work: {_reason(failure)}.",
                    hint="start again: it will not be used",
                ) from failure
            return replace(verdict, is_used=False, why=f"could not be timed: {_reason(failure)}")
        finally:
            self._release()
        return replace(verdict, why=_NOT_TIMED) if times is None else _timed(verdict, times)

    def _synchronise(self) -> None:
        if self._runtime.device.type == "cuda":
            torch.cuda.synchronize(self._runtime.device)

    def _release(self) -> None:
        """Give the memory of the cases back."""
        if self._runtime.device.type == "cuda":
            gc.collect()
            torch._C._cuda_clearCublasWorkspaces()  # of the streams that contests were captured on
            torch.cuda.empty_cache()


def _timed(verdict: Verdict, times: Times) -> Verdict:
    word = "faster" if times.fast_wins else "not faster"
    why = f"{word}: {times.fast:.1f} us against {times.twin:.1f}"
    return replace(verdict, is_used=times.fast_wins, why=why, micros=times.fast, twin_micros=times.twin)


def _error(verdict: Verdict) -> float:
    return verdict.error or 0.0


def _reason(failure: BaseException) -> str:
    """The first line of what was raised."""
    text = failure.message if isinstance(failure, EngineError) else str(failure)
    line = text.strip().partition("\n")[0] or type(failure).__name__
    return line[:_LONGEST_REASON]

"""A stand-in for Ray in this process: actors are objects with two threads, and can be lost. Only what kvplan uses."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from types import ModuleType, SimpleNamespace
from typing import Any


class RayError(Exception):
    pass


class ActorDiedError(RayError):
    pass


class RayTaskError(RayError):
    pass


class GetTimeoutError(RayError):
    pass


class Actor:
    """lose_in: number of calls of ``run`` after which the actor dies with the next one."""

    def __init__(self, made: Any, options: dict[str, Any], lose_in: int | None) -> None:
        self.made, self.options, self.lose_in = made, options, lose_in
        self.threads = ThreadPoolExecutor(2)
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self.threads.submit(self._call, name, *arguments))

    def _call(self, name: str, *arguments: Any) -> Any:
        if name == "run" and self.lose_in is not None:
            if self.lose_in == 0:
                self.is_dead = True
            self.lose_in -= 1
        if self.is_dead:
            self.made.close()
            raise ActorDiedError("The actor died.")
        try:
            return getattr(self.made, name)(*arguments)
        except (AttributeError, ImportError) as error:
            raise RayTaskError(f"Traceback\n{type(error).__name__}: {error}") from error


class FakeRay:
    """losing: for each actor to be made, after how many trials it dies; None: never."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, GetTimeoutError=GetTimeoutError)

    def __init__(self, listed: list[dict[str, Any]], losing: Sequence[int | None] = ()) -> None:
        self.listed = listed
        self.actors: list[Actor] = []
        self._losing = list(losing)

    def nodes(self) -> list[dict[str, Any]]:
        return self.listed

    def remote(self, kind: type) -> Any:
        def make(options: dict[str, Any]) -> Actor:
            self.actors.append(Actor(kind(), options, self._losing.pop(0) if self._losing else None))
            return self.actors[-1]

        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=lambda: make(options)))

    def wait(self, references: list[Future[Any]], timeout: float, num_returns: int = 1) -> tuple[list[Any], list[Any]]:
        done, waiting = wait_for(references, timeout=timeout)
        return list(done), list(waiting)

    def get(self, reference: Future[Any], timeout: float | None = None) -> Any:
        return reference.result(timeout)

    def kill(self, actor: Actor) -> None:
        actor.is_dead = True
        actor.made.close()
        actor.threads.shutdown(wait=False)


def scheduling() -> dict[str, ModuleType]:
    """What ``ray.util.scheduling_strategies`` holds, for sys.modules."""
    modules = {name: ModuleType(name) for name in ("ray", "ray.util", "ray.util.scheduling_strategies")}
    strategy = type("NodeAffinitySchedulingStrategy", (), {"__init__": _remember})
    modules["ray.util.scheduling_strategies"].NodeAffinitySchedulingStrategy = strategy  # type: ignore[attr-defined]
    return modules


def _remember(self: Any, node_id: str, soft: bool) -> None:
    self.node_id, self.soft = node_id, soft

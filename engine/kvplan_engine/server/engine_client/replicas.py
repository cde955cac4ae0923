"""All engine processes behind one API: starts them, sends each request to one of them, and commands to all.

They hold the same model with the same settings. When one of them dies, the server ends, as vLLM's does: a supervisor
starts all anew. Requests of the dead one get an error at once; those of the others may still finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from kvplan_engine.errors import EngineError
from kvplan_engine.requests.request import LoRARequest
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.server.engine_client.client import EngineClient
from kvplan_engine.server.engine_client.generation import Generation, Mailbox
from kvplan_engine.server.engine_client.in_flight import AdmissionQueue
from kvplan_engine.server.engine_client.process import MachineShare
from kvplan_engine.server.engine_client.routing import ONLY_ROUTE, Route, Router
from kvplan_engine.server.messages import ModelFacts, PoolFacts
from kvplan_engine.server.metrics.state import AdaptersInFlight, ServerMetrics


class Replicas:
    """``len(metrics.engines)`` engines. ``queue`` limits what waits for all of them together.

    ``model`` is the same for all; ``dead`` is set when one of them has ended.
    """

    def __init__(self, metrics: ServerMetrics, queue: AdmissionQueue) -> None:
        self.dead = asyncio.Event()
        self.engines = [EngineClient(each, queue, self.dead) for each in metrics.engines]
        self._open = asyncio.Event()  # cleared while the memory is carved anew
        self._router = Router(len(self.engines)) if len(self.engines) > 1 else None
        self._shares: list[MachineShare] = []
        for number, engine in enumerate(self.engines):
            engine.use_router(number, self._router)

    # ---- the processes

    async def start(self, model: str, settings: dict[str, Any]) -> None:
        """Start all processes and load ``model`` in each. EngineError when one cannot: then stop the others."""
        count = len(self.engines)
        self._shares = [MachineShare(settings, index, count) for index in range(count)]
        starts = [
            asyncio.ensure_future(engine.start(model, settings, share))
            for engine, share in zip(self.engines, self._shares, strict=True)
        ]
        try:
            await asyncio.gather(*starts)
        finally:
            for start in starts:
                start.cancel()
        self._check_devices()
        self._open.set()

    def _check_devices(self) -> None:
        devices = [engine.model.device.partition(":")[0] for engine in self.engines]
        if len(set(devices)) > 1:
            number = devices.index("cpu")
            raise EngineError(
                f"engine {number} of {len(devices)} finds no GPU of its own.",
                hint="lower --data-parallel-size, or --device cpu",
            )

    @property
    def model(self) -> ModelFacts:
        """What is loaded, as the first engine says it."""
        return self.engines[0].model

    @property
    def pool(self) -> PoolFacts:
        """How the engines are configured, as the first one says it."""
        return self.engines[0].pool

    @property
    def is_dead(self) -> bool:
        """Whether an engine has ended."""
        return self.dead.is_set()

    @property
    def is_anyone_alive(self) -> bool:
        return not all(engine.is_dead for engine in self.engines)

    def ending(self) -> str:
        """Which engines have ended, what follows from it, and how they say that they did."""
        if len(self.engines) == 1:
            which = "the engine process"
        else:
            dead = ", ".join(str(number) for number, engine in enumerate(self.engines) if engine.is_dead)
            which = f"the process of engine {dead} of {len(self.engines)}"
        reasons = dict.fromkeys(engine.failure.message for engine in self.engines if engine.failure is not None)
        ended = f"{which} has ended; so does this server"
        return f"{ended}: {' '.join(reasons)}" if reasons else ended

    def adapters_in_flight(self) -> AdaptersInFlight:
        """Which adapters have requests now, in any engine."""
        found = [engine.adapters_in_flight() for engine in self.engines]
        return AdaptersInFlight(_all_names(each.running for each in found), _all_names(each.waiting for each in found))

    async def stop(self) -> None:
        """End all processes: in good order those that still listen, otherwise by force."""
        await asyncio.gather(*(engine.stop() for engine in self.engines))

    # ---- requests

    async def wait_until_open(self) -> None:
        """Until new requests may be submitted: at once, unless the memory is being carved anew."""
        if not self._open.is_set():
            await self._open.wait()

    def submit(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        arrival: float,
        mailbox: Mailbox,
        first_choice: int,
        lora_request: LoRARequest | None = None,
        engine: int | None = None,
        cache_salt: str | None = None,
    ) -> Generation:
        """Send a request to ``engine``, or to the one that suits it best; its tokens go to ``mailbox``.

        cache_salt: only requests with the same one share cached prefixes. EngineDead, or Overloaded at a full queue.
        """
        self._check_alive()
        salt = ("" if lora_request is None else lora_request.name) + "\0" + (cache_salt or "")
        route = self._route(prompt_token_ids, params.n, salt, engine)
        return self.engines[route.engine].submit(
            prompt_token_ids, params, arrival, mailbox, first_choice, lora_request, route, cache_salt
        )

    def _route(self, prompt_token_ids: list[int], num_samples: int, salt: str, chosen: int | None) -> Route:
        if self._router is None:
            return ONLY_ROUTE
        loads = {number: engine.load() for number, engine in enumerate(self.engines) if chosen in (None, number)}
        return self._router.route(prompt_token_ids, num_samples, loads, salt)

    def abort(self, generation: Generation) -> None:
        """Stop all that is unfinished of ``generation``; nothing when it is finished."""
        self.engines[generation.route.engine].abort(generation)

    def end_answer(self, generation: Generation, choice: int) -> None:
        """``choice`` is complete for its reader, at a stop string: the engine need not go on with it."""
        self.engines[generation.route.engine].end_answer(generation, choice)

    def abort_all(self, reason: Exception) -> None:
        """Stop every request in flight; their readers are told ``reason``."""
        for engine in self.engines:
            engine.abort_all(reason)

    def _check_alive(self) -> None:
        for engine in self.engines:
            engine.check_alive()

    # ---- commands

    async def command_all(self, name: str, **arguments: Any) -> list[Any]:
        """What the engines return, in their order. EngineError when one fails, EngineDead when a process ends."""
        self._check_alive()
        return await asyncio.gather(*(engine.command(name, **arguments) for engine in self.engines))

    async def reset_prefix_caches(self) -> bool:
        """Whether all were emptied: one is not while it has requests."""
        emptied = await self.command_all("reset_prefix_cache")
        if self._router is not None:
            for engine in (number for number, is_empty in enumerate(emptied) if is_empty):
                self._router.forget(engine)
        return all(emptied)

    async def reconfigure(self, changes: dict[str, Any], patience_seconds: float) -> None:
        """Carve the memory of all engines anew with ``changes``. New requests wait; those in flight are waited for.

        TimeoutError, with nothing changed, when some are still in flight after ``patience_seconds``. EngineError, with
        nothing changed, where an engine cannot take ``changes``.
        """
        if not self._open.is_set():
            raise EngineError("the memory is being carved anew already.", hint="try again when that is done")
        self._open.clear()
        try:
            await asyncio.wait_for(self._wait_until_idle(), patience_seconds)
            await self._reconfigure(changes)
        finally:
            self._open.set()

    async def _wait_until_idle(self) -> None:
        for engine in self.engines:
            await engine.idle.wait()

    async def _reconfigure(self, changes: dict[str, Any]) -> None:
        """One engine after the other: the first that refuses is as it was, and those before it go back."""
        before = {name: self.engines[0].pool.config[name] for name in changes if name in self.pool.config}
        for number, (engine, share) in enumerate(zip(self.engines, self._shares, strict=True)):
            try:
                await engine.command("reconfigure", **share.settings(changes))
            except EngineError:
                for changed, own in zip(self.engines[:number], self._shares, strict=False):
                    await changed.command("reconfigure", **own.settings(before))
                raise


def _all_names(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(sorted({name for each in names for name in each}))

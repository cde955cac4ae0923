"""The model's chat template, rendered by a process that may be ended: see ``template_process``."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvplan_engine.errors import describe_exit
from kvplan_engine.server.messages import LENGTH
from kvplan_engine.server.text.template_messages import (
    LoadTemplate,
    PromptTooLong,
    Render,
    Rendered,
    TemplateFailed,
    frame,
)

_READ_BYTES = 1 << 20
# Of the processor, for one conversation: an ordinary one takes less than a thousandth of it.
_CPU_SECONDS = 2.0


class TemplateRenderer:
    """Renders one conversation after the other with the template ``source`` and the model's special tokens.

    Its process starts at once, and again after a conversation that cost too much.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, cpu_seconds: float = _CPU_SECONDS) -> None:
        self._load = LoadTemplate(source, dict(special_tokens), cpu_seconds)
        self._turn = asyncio.Lock()
        self._broken = ""  # why no conversation can be rendered
        self._starting = asyncio.ensure_future(self._start())

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
        most_characters: int,
    ) -> str:
        """The prompt for ``messages``. variables: what a request passes in chat_template_kwargs.

        TemplateFailed, or PromptTooLong for one of more than ``most_characters``.
        """
        order = frame(Render(list(map(dict, messages)), add_generation_prompt, dict(variables), most_characters))
        async with self._turn:
            if self._starting.done() and self._starting.exception() is not None:  # the system had no room for it
                self._starting = asyncio.ensure_future(self._start())
            worker = await asyncio.shield(self._starting)
            if worker is None:
                raise TemplateFailed(self._broken)
            answer = await worker.ask(order)
            if answer is None:
                worker.end()
                self._starting = asyncio.ensure_future(self._start())
                seconds = self._load.cpu_seconds
                raise TemplateFailed(
                    f"The chat template takes more than {seconds:g} seconds, or too much memory, for these messages."
                )
        if answer.error:
            raise TemplateFailed(answer.error)
        if answer.num_characters > most_characters:
            raise PromptTooLong(answer.num_characters)
        return answer.text

    async def close(self) -> None:
        """End the process."""
        (worker,) = await asyncio.gather(self._starting, return_exceptions=True)
        if isinstance(worker, _Worker):
            worker.end()

    async def _start(self) -> _Worker | None:
        """None where the template is no template, or takes too long to compile."""
        worker = await _Worker.start()
        answer = await worker.ask(frame(self._load))
        if answer is not None and not answer.error:
            return worker
        code = worker.end()
        if answer is not None:
            self._broken = answer.error
        elif code == -signal.SIGPROF:
            self._broken = "The model's chat template takes too long to compile."
        else:
            self._broken = f"The process of the model's chat template {describe_exit(code)}."
        return None


class _Worker:
    """One process and the connection to it."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls) -> _Worker:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-m", "kvplan_engine.server.text.template_process", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except OSError:
            ours.close()
            raise
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_READ_BYTES)
        return cls(process, reader, writer)

    async def ask(self, order: bytes) -> Rendered | None:
        """None where the process ended instead of an answer."""
        self._writer.write(order)
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            return msgspec.json.decode(await self._reader.readexactly(length), type=Rendered)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def end(self) -> int:
        """The process's return code, which is its own where it had ended already."""
        self._writer.close()
        self._process.kill()
        return self._process.wait()

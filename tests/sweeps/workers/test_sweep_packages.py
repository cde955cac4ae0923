"""A sweep of kvplan's own engine works with the packages that a plain installation has."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys(("httptools", "msgspec", "uvloop"), None))
from kvplan.cli import main
sys.argv = ["kvplan", *{words!r}]
sys.exit(main())
"""


@pytest.mark.parametrize(("engine", "code"), [([], 0), (["--engine", "vllm"], 2)], ids=["own", "vllm"])
def test_only_another_engine_needs_the_load_extra(engine: list[str], code: int) -> None:
    words = ["sweep", "--model", "gpt2", "--device-memory", "1GiB", "--dry-run", *engine]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS.format(words=words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert ("pip install 'kvplan[load]'" in done.stderr) == bool(engine)

"""Builds the wheel and the sdist, installs each alone in an empty environment, and runs what a plain install promises.

    python tools/check_install.py      # make check-install; a minute

Run in a folder without the repository, with a Python that has nothing else. Exit code 1 where a command fails, an
installation is larger than promised, or a command whose extra is missing does not say what to type.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_MIB = 40
INSTALL = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
COMMANDS = (
    "estimate llama-3.1-8b --ctx 16k",
    "estimate deepseek-v3.2 --gpu 8xh200 --ctx 64k --json",
    "plan llama-3.1-8b --users 40 --ctx-avg 8k",
    "plan llama-3.1-8b --users 40 --format kubernetes",
    "models --architectures",
    "gpus",
)
LACKING = {"sweep --model gpt2": "engine", "serve gpt2": "serve", "load localhost:1": "load", "report .": "report"}


def main() -> int:
    """Check both packages, and print one line for each."""
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kvplan-install-") as name:
        folder = Path(name)
        builder = _environment(folder / "builder", with_pip=True)
        # a pip that installs into other environments, and what the packages are built with
        _run([builder, *INSTALL, "--upgrade", "pip", "build", "hatchling"], folder)
        _run([builder, "-m", "build", "--no-isolation", "--outdir", folder / "dist", ROOT], folder)
        for package in sorted((folder / "dist").iterdir()):
            problems += _check(package, builder, folder / package.suffix.strip("."))
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


def _environment(folder: Path, with_pip: bool = False) -> Path:
    venv.create(folder, with_pip=with_pip)
    return folder / "bin/python"


def _run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    done = _try(command, folder)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done


def _try(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "KVPLAN", "VIRTUAL_ENV"))}
    environment = {**kept, "KVPLAN_CACHE_DIR": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def _check(package: Path, builder: Path, folder: Path) -> list[str]:
    folder.mkdir()
    python = _environment(folder / "venv")
    _run([builder, "-m", "pip", "--python", python, *INSTALL[2:], package], folder)
    program = python.with_name("kvplan")
    sites = next((folder / "venv/lib").iterdir()) / "site-packages"
    mib = sum(file.stat().st_size for file in sites.rglob("*") if file.is_file()) / 1024**2
    count = len(list(sites.glob("*.dist-info")))
    problems = [f"{package.name}: {mib:.0f} MiB are more than {MOST_MIB}"] if mib > MOST_MIB else []
    for line in COMMANDS:
        done = _try([program, *line.split()], folder)
        if done.returncode or not done.stdout:
            problems.append(f"{package.name}: kvplan {line} ended with {done.returncode}\n{done.stderr}")
    for line, extra in LACKING.items():
        done = _try([program, *line.split()], folder)
        if done.returncode != 2 or f"pip install 'kvplan[{extra}]'" not in done.stderr:
            problems.append(f"{package.name}: kvplan {line} does not name its extra\n{done.stderr}")
    print(f"{package.name}: {mib:.0f} MiB in {count} packages, {len(COMMANDS) + len(LACKING)} commands tried")
    return problems


if __name__ == "__main__":
    sys.exit(main())

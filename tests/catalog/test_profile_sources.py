"""A shipped config says where it was read, or says that it was not and is announced with a note."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from kvplan.catalog.models import UNREAD, profiles, provenance_note, read_profile

_PACKAGE = re.compile(
    r"aiconfigurator-core \d+\.\d+\.\d+|litgpt \d+\.\d+\.\d+|defaults of \w+ in transformers \d+\.\d+"
)
_REPOSITORY_FILE = re.compile(r"github\.com/[\w.-]+/[\w.-]+, [\w./-]+\.\w+ at [0-9a-f]{40}")


@pytest.mark.parametrize("profile", list(profiles()), ids=lambda profile: profile["name"])
def test_every_profile_is_honest_about_its_source(profile: dict[str, str]) -> None:
    """A package and its version, or a file of a repository at a commit: an address alone is not enough."""
    source = profile["source"]
    if not source.startswith(UNREAD):
        assert _PACKAGE.search(source) or _REPOSITORY_FILE.search(source), source
    note = provenance_note(read_profile(profile))
    assert (note is not None) == source.startswith(UNREAD)


@pytest.mark.parametrize(
    "source",
    [
        "https://huggingface.co/openai-community/gpt2/blob/main/config.json",
        "https://huggingface.co/bigscience/bloom/blob/main/config.json (176 B parameters)",
        "github.com/someone/something",
        "as in litgpt",
    ],
)
def test_an_address_or_a_name_alone_is_no_source(source: str) -> None:
    assert not _PACKAGE.search(source) and not _REPOSITORY_FILE.search(source)


def test_the_note_reaches_the_user_on_stderr() -> None:
    command = [sys.executable, "-m", "kvplan", "estimate"]
    unread = subprocess.run([*command, "minimax-text-01", "--json"], capture_output=True, text=True, check=True)
    assert unread.stderr.startswith("note: kvplan's profile of MiniMaxAI/MiniMax-Text-01: shape not read")
    read = subprocess.run([*command, "llama-3.1-8b", "--json"], capture_output=True, text=True, check=True)
    assert read.stderr == ""

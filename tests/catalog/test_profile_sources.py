"""A shipped config says where it was read, or says that it was not and is announced with a note."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from kvplan.catalog.models import UNREAD, profiles, provenance_note, read_profile

_READ = re.compile(r"aiconfigurator|litgpt|github\.com|GitHub|transformers \d")


@pytest.mark.parametrize("profile", list(profiles()), ids=lambda profile: profile["name"])
def test_every_profile_is_honest_about_its_source(profile: dict[str, str]) -> None:
    source = profile["source"]
    assert source.startswith(UNREAD) != bool(_READ.search(source)), source
    note = provenance_note(read_profile(profile))
    assert (note is not None) == source.startswith(UNREAD)


def test_the_note_reaches_the_user_on_stderr() -> None:
    command = [sys.executable, "-m", "kvplan", "estimate"]
    unread = subprocess.run([*command, "minimax-text-01", "--json"], capture_output=True, text=True, check=True)
    assert unread.stderr.startswith("note: kvplan's profile of MiniMaxAI/MiniMax-Text-01: shape not read")
    read = subprocess.run([*command, "llama-3.1-8b", "--json"], capture_output=True, text=True, check=True)
    assert read.stderr == ""

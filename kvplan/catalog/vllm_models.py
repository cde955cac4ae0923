"""Which architectures a release of vLLM does not serve (the table of architectures says from when to when each is)."""

from __future__ import annotations

from kvplan.catalog.architectures import ServedByVllm, architectures
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.caveats import Caveat

_SERVED = ServedByVllm()


def is_never_served(architecture: str) -> bool:
    """Return whether no release of vLLM has a class of ``architecture``, nor a backend for it."""
    return not _of(architecture).served


def has_class(architecture: str, version: str) -> bool:
    """Return whether vLLM ``version`` serves ``architecture``; True of those that nothing is known about."""
    served = _of(architecture)
    return served.served and vllm_release(version).is_within(served.last) and not _is_before(served.first, version)


def service_note(architecture: str, version: str) -> str | None:
    """Return what a user has to know of an architecture that vLLM ``version`` does not serve; None of any other."""
    if has_class(architecture, version):
        return None
    if is_never_served(architecture):
        return Caveat(f"vLLM serves no {architecture}: sized as if it did.")
    served, release = _of(architecture), vllm_release(version).text
    if _is_before(served.first, version):
        has_none = f"vLLM {release} has no class of {architecture}; the first release that has one is {served.first}"
        return Caveat(f"{has_none} (--engine vllm@{served.first}).")
    ended = f"vLLM {release} no longer serves {architecture}"
    return Caveat(f"{ended}; the last release that does is {served.last} (--engine vllm@{served.last}).")


def _is_before(first: str | None, version: str) -> bool:
    """Whether ``version`` is older than ``first``; a build between two releases may have what the next one has."""
    is_between = "dev" in version or "rc" in version
    return first is not None and not is_between and vllm_release(version).is_before(first)


def _of(architecture: str) -> ServedByVllm:
    row = architectures().get(architecture)
    return _SERVED if row is None else row.vllm

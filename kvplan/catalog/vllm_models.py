"""Which architectures vLLM serves no longer, or never did (the table of architectures says until when)."""

from __future__ import annotations

from kvplan.catalog.architectures import ServedByVllm, architectures
from kvplan.catalog.releases.vllm import vllm_release

_SERVED = ServedByVllm()


def is_never_served(architecture: str) -> bool:
    """Return whether no release of vLLM has a class of ``architecture``, nor a backend for it."""
    return not _of(architecture).served


def has_class(architecture: str, version: str) -> bool:
    """Return whether vLLM ``version`` serves ``architecture``; True of those that nothing is known about."""
    served = _of(architecture)
    return served.served and vllm_release(version).is_within(served.last)


def service_note(architecture: str, version: str) -> str | None:
    """Return what a user has to know of an architecture that vLLM ``version`` does not serve; None of any other."""
    if has_class(architecture, version):
        return None
    if is_never_served(architecture):
        return f"vLLM serves no {architecture}: sized as if it did."
    last = _of(architecture).last
    ended = f"vLLM {vllm_release(version).text} no longer serves {architecture}"
    return f"{ended}; the last release that does is {last} (--engine vllm@{last})."


def _of(architecture: str) -> ServedByVllm:
    row = architectures().get(architecture)
    return _SERVED if row is None else row.vllm

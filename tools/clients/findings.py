"""A check of a client, and what all its checks showed."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. found: what there was to see, with its figures."""

    what: str
    is_right: bool
    found: str


@dataclass(slots=True)
class Findings:
    """What one client showed. missing: why it was not tried; then there are no checks. details: lines for the page."""

    client: str
    version: str = ""
    missing: str = ""
    checks: list[Check] = field(default_factory=list)
    details: list[str] = field(default_factory=list)

    def check(self, what: str, is_right: bool, found: object = "") -> None:
        self.checks.append(Check(what, is_right, str(found)))

    def equal(self, what: str, found: object, expected: object) -> None:
        said = f"{found}" if found == expected else f"{found} instead of {expected}"
        self.check(what, found == expected, said)

    @property
    def is_right(self) -> bool:
        """It was tried, and every check held."""
        return not self.missing and bool(self.checks) and all(check.is_right for check in self.checks)

    @property
    def verdict(self) -> str:
        if self.missing:
            return f"not tried: {self.missing}"
        wrong = [check.what for check in self.checks if not check.is_right]
        return f"failed: {'; '.join(wrong)}" if wrong else f"right in {len(self.checks)} checks"

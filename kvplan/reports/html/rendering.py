"""Templates into pages. Jinja2 escapes every value that is not markup, so text from a file stays text."""

from __future__ import annotations

import base64
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from kvplan.reports.statuses import look_of
from kvplan.reports.wording import short_number

# Of a list of sentences, how many are shown before the rest is folded away.
MOST_LINES: Final = 6


def render(template: str, **values: Any) -> str:
    """The page of ``templates/<template>``. A value that a template names and does not get is an error."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("kvplan.reports.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"breakable": breakable, "data_uri": data_uri, "short": short_number}
    environment.globals |= {"look_of": look_of, "most_lines": MOST_LINES}
    return environment


def breakable(name: str) -> Markup:
    """A long identifier that may break after its underscores and dots, nowhere else."""
    return escape(name).replace("_", Markup("_<wbr>")).replace(".", Markup(".<wbr>"))


def data_uri(content: bytes, media_type: str) -> str:
    """The content itself as an address, so that the page fetches nothing."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"

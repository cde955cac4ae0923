"""Renders the templates. Jinja2 escapes every value that is not markup, so text from a run's files stays text."""

from __future__ import annotations

import base64
from functools import cache
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from kvplan.reports.looks import look_of
from kvplan.reports.wording import short_number
from kvplan.runs.statuses import STATUS_BRIEF

# How many sentences of a list are shown before the rest is folded.
MOST_LINES: Final = 10


def render(template: str, **values: object) -> str:
    """The page that ``templates/<template>`` makes of the values. jinja2.UndefinedError for a value it lacks."""
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
    environment.globals |= {"look_of": look_of, "status_brief": STATUS_BRIEF, "most_lines": MOST_LINES}
    return environment


def breakable(name: str) -> Markup:
    """A long identifier that may be broken after its underscores and dots only."""
    return escape(name).replace("_", Markup("_<wbr>")).replace(".", Markup(".<wbr>"))


def data_uri(content: bytes, media_type: str) -> str:
    """The content as a URI, so that the page fetches nothing."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"

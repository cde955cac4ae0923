"""HTML that cannot forget to escape: every string that is not ``Html`` already becomes text."""

from __future__ import annotations

import base64
import html
from typing import Final

_VOID: Final = frozenset({"br", "img", "meta"})


class Html(str):
    """A string that is markup. Made by ``tag``; anything else is text to be escaped."""

    __slots__ = ()


def escape(value: object) -> Html:
    """Markup as it is, everything else as text."""
    return value if isinstance(value, Html) else Html(html.escape(str(value), quote=True))


def join(*parts: object) -> Html:
    """Parts behind each other, text escaped."""
    return Html("".join(escape(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """``tag("td", "a < b", class_="text")``: a trailing underscore is dropped, other underscores become hyphens; an
    attribute that is None is left out, True stands alone."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        words.append(attribute if value is True else f'{attribute}="{html.escape(str(value), quote=True)}"')
    opening = f"<{' '.join(words)}>"
    return Html(opening if name in _VOID else f"{opening}{join(*children)}</{name}>")


def breakable(name: str) -> Html:
    """A long identifier that may break behind its underscores and dots, nowhere else."""
    return Html(escape(name).replace("_", "_<wbr>").replace(".", ".<wbr>"))


def data_uri(content: bytes, kind: str) -> str:
    """The content itself as an address, so that the page fetches nothing."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"

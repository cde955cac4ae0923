"""The model's chat template: Jinja in a sandbox, as transformers renders it, with bounds on its work and its size.

The bounds are for templates that a conversation can drive into far too much work: every turn of a loop and every call
costs one unit of fuel, and a range costs its length. They end such a template with a sentence. What they do not see
is ended by the system: see ``template_process``, where this runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.visitor import NodeTransformer

from kvplan_engine.server.text.template_messages import TemplateFailed

_FUEL = 100_000  # a third of a second at most; a thousand messages take a few thousand
_MAX_CHARACTERS = 32 * 1024 * 1024
_SPEND, _JOIN = "kvplan_spend_fuel", "kvplan_join"
# They make texts as long as they are told to.
_PADDING_METHODS = frozenset({"center", "expandtabs", "format", "format_map", "ljust", "rjust", "zfill"})
_PADDING_FILTERS = ("center", "format", "wordwrap")


class _Refusal(TemplateError):
    """What ``raise_exception`` in a template raises."""


class _GenerationBlock(Extension):
    """``{% generation %}``, by which templates mark what an assistant said for training: its content stays."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Bounds(NodeTransformer):
    """Puts a statement that spends fuel at the beginning of every loop's body, and bounds the operator ~."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(nodes.Call(nodes.Name(_SPEND, "load"), [], [], None, None)))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Call(nodes.Name(_JOIN, "load"), node.nodes, [], None, None)


class _Environment(ImmutableSandboxedEnvironment):
    """Counts loop turns and calls, and lets no operator make a text longer than the bound."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock])
        self.fuel = _FUEL
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["range"] = self._range
        self.globals[_SPEND] = self.spend
        self.globals[_JOIN] = self._join
        for name in _PADDING_FILTERS:
            del self.filters[name]

    def spend(self, amount: int = 1) -> str:
        self.fuel -= amount
        if self.fuel < 0:
            raise SecurityError("it takes too many steps for these messages")
        return ""

    def _range(self, *bounds: int) -> range:
        numbers = range(*bounds)
        self.spend(len(numbers))
        return numbers

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Bounds().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def _join(self, *parts: Any) -> str:
        return _bounded("".join(map(str, parts)))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return super().is_safe_attribute(obj, attr, value) and not (isinstance(obj, str) and attr in _PADDING_METHODS)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if obj != self.spend:
            self.spend()
        result = super().call(context, obj, *args, **kwargs)
        return _bounded(result) if isinstance(result, str) else result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(each) for each in (left, right) if isinstance(each, (str, list, tuple))]
        factors = [abs(each) for each in (left, right) if isinstance(each, int)]
        if operator == "+" and sum(sizes) > _MAX_CHARACTERS:
            raise SecurityError("it makes too long a text of these messages")
        if operator == "*" and sizes and max(sizes) * max(factors, default=1) > _MAX_CHARACTERS:
            raise SecurityError("it makes too long a text of these messages")
        if operator == "**" and max(factors, default=0) > 1000:
            raise SecurityError("it computes too large a number")
        if operator == "%" and isinstance(left, str):
            raise SecurityError("it formats with %, which has no bound")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """``source`` with the model's special tokens. TemplateFailed when it is not valid Jinja."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        self._environment = _Environment()
        try:
            self._template = self._environment.from_string(source)
        except TemplateError as problem:
            raise TemplateFailed(f"The model's chat template is not valid: {problem}.") from None

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, variables: Mapping[str, Any]
    ) -> str:
        """The prompt for ``messages``. variables: what a request passes in chat_template_kwargs."""
        self._environment.fuel = _FUEL
        context = {**self._special_tokens, **variables, "messages": messages, "tools": None, "documents": None}
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(**context, add_generation_prompt=add_generation_prompt):
                size += len(piece)
                if size > _MAX_CHARACTERS:
                    raise TemplateFailed("The chat template makes too long a prompt of these messages.")
                pieces.append(piece)
        except _Refusal as problem:
            raise TemplateFailed(f"The chat template refuses these messages: {problem}.") from None
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as problem:
            raise TemplateFailed(f"The chat template failed on these messages: {problem}.") from None
        except (RecursionError, MemoryError):
            raise TemplateFailed("The chat template nests too deeply, or makes too much, of these messages.") from None
        return "".join(pieces)


def _bounded(text: str) -> str:
    if len(text) > _MAX_CHARACTERS:
        raise SecurityError("it makes too long a text of these messages")
    return text


def _raise_exception(message: str) -> NoReturn:
    raise _Refusal(str(message).rstrip("."))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Write JSON without Jinja's escaping of HTML, as transformers has it."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)

"""How a drafter's part of an estimate is printed."""

from __future__ import annotations

from kvplan.commands.printing.render import print_markdown, print_sentence, print_table, say
from kvplan.estimate.answer import EstimateAnswer
from kvplan.estimate.speculation import DeploymentSpeculation, Speculation
from kvplan.estimate.speed.latency import Range
from kvplan.units import format_bytes, format_tokens

_HEAD = ("GPU", "acceptance rate", "tokens per step", "alone", "at once", "sequences")
_NAMES = {
    "mtp": "its own multi-token-prediction layers",
    "ngram": "n-grams of the text so far",
    "suffix": "suffixes of earlier texts",
}


def print_speculation(answer: EstimateAnswer, *, as_markdown: bool = False) -> None:
    """What the drafter takes, and how many times as fast sequences decode; nothing where there is no drafter."""
    found = answer.speculation
    if found is None:
        return
    say()
    print_sentence(_sentence(found), indent="", further=" " * 10)
    rows = [row for each in found.deployments if each is not None for row in _rows(each)]
    if not rows:
        return
    if as_markdown:
        say()
        print_markdown(_HEAD, rows)
        return
    say()
    context = format_tokens(answer.context_tokens)
    title = f"Speed-up from speculation (data sheet), for one sequence of {context} tokens and for all that fit:"
    print_table(title, list(_HEAD), rows, text_columns=(0,))


def _sentence(found: Speculation) -> str:
    """``Drafter: n-grams ..., 4 draft tokens per step; it takes 0.79 GiB of weights per GPU and 4,096 B per token.``"""
    drafter = found.drafter
    name = _NAMES.get(drafter.method) or f"{drafter.name} ({drafter.method})"
    tokens = f"{drafter.num_tokens} draft token{'s' if drafter.num_tokens > 1 else ''} per step"
    if drafter.model is None:
        return f"Drafter   {name}, {tokens}: no weights and no cache"
    size = f"{format_bytes(found.weight_bytes)} of weights per GPU, " if found.weight_bytes else ""
    return f"Drafter   {name}, {tokens}: {size}{found.bytes_per_token:,} B per token of KV cache"


def _rows(deployment: DeploymentSpeculation) -> list[list[str]]:
    return [
        [
            deployment.gpu,
            f"{gain.acceptance_rate:g}",
            f"{gain.tokens_per_step:.2f}",
            _times(gain.alone),
            _times(gain.full),
            f"{deployment.num_users:,}",
        ]
        for gain in deployment.gains
    ]


def _times(found: Range) -> str:
    low, high = f"{found.low:.2f}", f"{found.high:.2f}"
    return low if low == high else f"{low} to {high}"

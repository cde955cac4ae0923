"""Parts of an estimate's answer: how fast deployments are to one user and to all, their KV layout, their drafter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvplan.catalog.spec import ModelSpec, QuantizationSpec
from kvplan.commands.printing.queues import intervals_text, print_steps, queues_text, server_text
from kvplan.commands.printing.render import print_markdown, print_sentence, print_table, say
from kvplan.estimate.answer import EstimateAnswer
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.kv_groups import Kept, KvGroup
from kvplan.estimate.kvplan.held_weights import most_held
from kvplan.estimate.kvplan.layout import KvLayout
from kvplan.estimate.placed.placement import SizedDeployment
from kvplan.estimate.speculation import DeploymentSpeculation, Speculation
from kvplan.estimate.speed.device_speed import DeploymentSpeed
from kvplan.estimate.speed.latency import Range, ServingSpeed
from kvplan.estimate.speed.queues import Queues
from kvplan.estimate.weights import format_label
from kvplan.planner.answer.ranges import span, within
from kvplan.units import format_bytes, format_tokens

_SHARING = {"channel": "output", "tensor": "matrix"}
_DRAFTER_HEAD = ("GPU", "acceptance rate", "tokens per step", "alone", "at once", "sequences")
_NAMES = {
    "mtp": "its own multi-token-prediction layers",
    "ngram": "n-grams of the text so far",
    "suffix": "suffixes of earlier texts",
}


def print_speeds(answer: EstimateAnswer, *, explain: bool) -> None:
    """A table of devices that were measured; with ``explain`` those by data sheet too, and what steps consist of."""
    known = [(each, speed) for each, speed in zip(answer.deployments, answer.speeds, strict=True) if speed]
    shown = [(each, speed) for each, speed in known if explain or speed.is_measured]
    if not explain:
        _print_table(shown)
        unmeasured = [each.counted_gpu for each, speed in known if not speed.is_measured]
        if unmeasured:
            say("" if shown else "\n", end="")
            text = (
                f"No speeds of {', '.join(unmeasured)}: none were measured there; --explain has those of data sheets."
            )
            print_sentence(text, indent="  " if shown else "")
        return
    for number, (deployment, speed) in enumerate(shown):
        if number > 0:
            say()
        name = deployment.counted_gpu
        for line in _lines(name, speed, explain=explain):
            text = line.lstrip()
            indent = " " * (len(line) - len(text))
            print_sentence(text, indent=indent, further=indent + "  ")
        print_steps(name, speed.explained_steps())


_HEAD = ("GPU", "TTFT p50 ms", "TPOT p50 ms", "tokens/s", "at once")


def _print_table(shown: Sequence[tuple[SizedDeployment, DeploymentSpeed]]) -> None:
    """One request, and as many at once as fit: a row each. Below it, where the times come from."""
    if not shown:
        return
    rows, notes, learned = [], [], ""
    for deployment, speed in shown:
        name = deployment.counted_gpu
        played = {count: speed.queues(count) for count in sorted({1, speed.num_users})}
        states = {speed.num_users: speed.full, 1: speed.alone}
        learned = next((_learned(speed, each) for each in played.values() if each is not None), "") or learned
        notes.append(f"{name}: {speed.origin_text(explain=False)}.")
        for count, queues in played.items():
            rows.append((name, *(_range_cells(states[count]) if queues is None else _cells(queues)), f"{count:,}"))
            server = server_text(speed.model.server_share(count), speed.model.front_end.servers)
            notes += [f"{name}, {count:,} at once: ranges without queues."] if queues is None else []
            notes += [] if server is None else [f"{name}, {count:,} at once: {server}."]
        if (
            speed.lengths.whole == deployment.settings.max_model_len
            and speed.num_users > deployment.max_concurrency + 1
        ):
            notes.append(
                f"{name}, {speed.num_users:,} at once: vLLM counts {deployment.max_concurrency:.1f}, each with a "
                "step's tokens in its windows, which only prompts that are being read hold."
            )
    say()
    lengths = shown[0][1].lengths
    print_table(
        f"Speeds of prompts of {lengths.prompt:,} and answers of {lengths.answer} tokens{learned}:", _HEAD, rows
    )
    for note in notes:
        print_sentence(note)
    print_sentence("Other lengths: kvplan plan --input-len --output-len.")


def _cells(queues: Queues) -> tuple[str, ...]:
    """Each figure with its 90 % interval."""
    figures, tokens = queues.figures, queues.output_throughput
    ttft, tpot = figures.ttft, figures.tpot
    return (
        within(ttft.median, queues.between("ttft", ttft.median), 1000),
        "-" if tpot is None else within(tpot.median, queues.between("tpot", tpot.median), 1000),
        within(tokens, queues.between("throughput", tokens)),
    )


def _range_cells(speed: ServingSpeed) -> tuple[str, ...]:
    tokens = speed.output_tokens_per_second
    return (
        _milliseconds(speed.ttft_seconds),
        _milliseconds(speed.tpot_seconds),
        span(tokens.low, tokens.high, ",.0f").replace("-", " to "),
    )


def _lines(name: str, speed: DeploymentSpeed, *, explain: bool) -> list[str]:
    """A head with the origin; percentiles, and ranges of a steady state where no load can be played."""
    head = f"  {name}, prompts of {speed.lengths.prompt:,}, answers of {speed.lengths.answer}"
    states = {1: ("alone", speed.alone)}
    states.setdefault(speed.num_users, (f"{speed.num_users:,} at once", speed.full))
    played = {count: speed.queues(count) for count in states}
    learned = next((_learned(speed, each) for each in played.values() if each is not None), "")
    drafting = speed.drafting_text()
    drafted = f"; {drafting}" if drafting else ""
    lines = [f"{head} ({speed.origin_text(explain=explain)}{learned}{drafted}):"]
    for count, (who, state) in states.items():
        queues = played[count]
        lines.append(f"    {who}: {_ranges(state) if queues is None else queues_text(queues)}")
        server = server_text(speed.model.server_share(count), speed.model.front_end.servers)
        lines += [] if server is None else [f"    {who}: {server}"]
    return lines


def _learned(speed: DeploymentSpeed, queues: Queues) -> str:
    """What the intervals were learned from, and of what else than this."""
    whose = " of other engines" if speed.model.engine == "kvplan" else ""
    return intervals_text(queues, f"{whose} on GPUs" if speed.model.gpu.is_cpu else whose)


def _ranges(speed: ServingSpeed) -> str:
    found = speed.output_tokens_per_second
    low, high = f"{found.low:,.0f}", f"{found.high:,.0f}"
    tokens = low if low == high else f"{low} to {high}"
    return (
        f"without queues TTFT {_milliseconds(speed.ttft_seconds)} ms, TPOT {_milliseconds(speed.tpot_seconds)} ms, "
        f"{tokens} tokens/s"
    )


def _milliseconds(found: Range) -> str:
    low, high = (span(1000 * end, 1000 * end, ",.0f", least=1000 * found.least) for end in (found.low, found.high))
    return f"{low} to {high}"


def layout_lines(layout: KvLayout, context_tokens: int) -> list[str]:
    """A line for the block and, where layers keep different tokens, one for each group: bundles x their width.

    blocks of 327,680 B = 320.00 KiB, in bundles for 16 tokens:
      all tokens:         8,192 x 4 blocks  0.0 % empty
      last 1,024 tokens:  65 x 21 blocks    1.0 % empty
    """
    block = f"blocks of {layout.block_bytes:,} B = {format_bytes(layout.block_bytes)}"
    if layout.is_uniform:
        return [f"{block}: all layers of {_tokens(layout.block_size)}"]
    rows = [_layout_cells(layout, group, context_tokens) for group in layout.groups]
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip() for row in rows]
    state = ", or for a state" if layout.has_states else ""
    return [f"{block}, in bundles for {_tokens(layout.block_size)}{state}:", *(f"  {line}" for line in lines)]


def _layout_cells(layout: KvLayout, group: KvGroup, context_tokens: int) -> tuple[str, ...]:
    bundles = group.most_bundles(context_tokens, 1, layout.block_size)
    empty = 100 * (group.width * layout.block_bytes / group.unit_bytes - 1)
    return (
        f"{kept_name(group.kept)}:",
        f"{bundles:,} x {group.width:,} block{'s' if group.width != 1 else ''}",
        f"{empty:.1f} % empty",
    )


def kept_name(kept: Kept) -> str:
    """``all tokens``, ``last 1,024 tokens``, ``chunk of 8,192 tokens``, ``states``."""
    if kept.tokens is None:
        return "states" if kept.kind == "state" else "all tokens"
    return f"{'last' if kept.kind == 'window' else 'chunk of'} {kept.tokens:,} tokens"


def _tokens(number: int) -> str:
    return f"{number} token" + ("s" if number != 1 else "")


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
        print_markdown(_DRAFTER_HEAD, rows)
        return
    say()
    context = format_tokens(answer.context_tokens)
    title = f"Speed-up from speculation (data sheet), for one sequence of {context} tokens and for all that fit:"
    print_table(title, list(_DRAFTER_HEAD), rows, text_columns=(0,))


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


def storage_formulas(spec: ModelSpec) -> Iterator[str]:
    """How a checkpoint stores each of its formats of few bits; nothing where all weights are plain, or were read."""
    if spec.quantization is None or spec.checkpoint is not None:
        return
    for each in spec.quantization.formats:
        yield f"{format_label(each)}: {_stored(each)}"


def _stored(quantization: QuantizationSpec) -> str:
    scale = f"{8 * element_bytes(quantization.scale_dtype)}-bit scale"
    if quantization.has_zero_points:
        scale += f" and {quantization.bits:g}-bit zero point"
    order = ", 32 bit for each input's group" if quantization.has_act_order else ""
    return f"{quantization.bits:g} bit a weight, {scale} for each {_shared(quantization)}{order}"


def _shared(quantization: QuantizationSpec) -> str:
    if quantization.granularity == "group":
        return f"{quantization.group_size} weights of an output"
    if quantization.granularity == "block" and quantization.block_shape:
        return "tile of {} x {}".format(*quantization.block_shape)
    return _SHARING[quantization.granularity]


def held_formula(spec: ModelSpec, deployment: SizedDeployment) -> str | None:
    """How kvplan's engine holds the weights that it keeps in few bits; None where it keeps none, or another serves."""
    settings = deployment.settings
    found = None if deployment.engine != "kvplan" else most_held(spec, settings.quantization)
    if found is None:
        return None
    scale = "8-bit" if found.scale_bytes == 1 else "float32"
    sides = f"{scale} scale and minimum" if found.has_minimums else f"{scale} scale"
    order = ", 32 bit for each input" if found.has_order else ""
    return (
        f"in kvplan's engine: matrices of attention, MLPs and experts {found.bits} bit a weight, {sides} for each "
        f"{found.group} weights of an output{order}; everything else in {settings.dtype}"
    )

"""How fast an estimate's deployments are: to one user, and to as many as fit at once."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.commands.printing.queues import intervals_text, print_steps, queues_text, server_text
from kvplan.commands.printing.render import print_sentence, print_table, say
from kvplan.estimate.answer import EstimateAnswer
from kvplan.estimate.placed.placement import SizedDeployment
from kvplan.estimate.speed.device_speed import DeploymentSpeed
from kvplan.estimate.speed.latency import Range, ServingSpeed
from kvplan.estimate.speed.queues import Queues
from kvplan.planner.answer.ranges import span, within


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

"""What ``kvplan plan --workload TRACE`` prints: the fleet, its windows, what fails first, what else serves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kvplan.commands.options.extras import need_extra
from kvplan.commands.printing.fleet_progress import fleet_name
from kvplan.commands.printing.fleet_wishes import print_policies, print_pools
from kvplan.commands.printing.plan_sentences import rent_text
from kvplan.commands.printing.plans import print_commands
from kvplan.commands.printing.render import (
    as_markdown,
    print_csv,
    print_json,
    print_notes,
    print_sentence,
    print_table,
    say,
)
from kvplan.errors import KvplanError
from kvplan.fleet.routers.named import ROUTERS
from kvplan.planner.answer.document import plan_row
from kvplan.planner.answer.fleet_document import balancer_of, fleet_assumptions, fleet_document, usd_per_hour
from kvplan.planner.answer.ranges import milliseconds, within
from kvplan.planner.choices.verdict import ExpectedBound
from kvplan.planner.fleets.answering import FleetAnswer
from kvplan.planner.fleets.growth import WORDS
from kvplan.planner.fleets.judging import WindowVerdict
from kvplan.planner.fleets.playing import Played
from kvplan.planner.launch.engines import checkpoint_name
from kvplan.planner.launch.manifests import MANIFESTS
from kvplan.planner.launch.scaling import scaling_manifests
from kvplan.planner.question.slo import Bound
from kvplan.units import plural
from kvplan.workload.files import span_text, survey_file

_MOST_WINDOWS = 24
_MOST_NAMED = 6
"""GPUs that one line names; JSON has all (``left_out``)."""


def print_fleet_text(answer: FleetAnswer, *, explain: bool = False) -> None:
    """The best fleet as people read it; nothing where no fleet keeps the level."""
    if answer.best is not None:
        _print_text(answer, answer.best, as_page=False, explain=explain)


def print_fleet(answer: FleetAnswer, output_format: str, *, explain: bool = False) -> None:
    """The whole answer in ``output_format``. KvplanError, with what came nearest, where no fleet keeps the level."""
    deployments, model_id = answer.plan.deployments, answer.plan.spec.served_id
    if output_format == "json":
        print_json(fleet_document(answer))
    elif output_format == "csv":
        print_csv([plan_row(each, model_id, answer.plan.request.api_price) for each in deployments])
    elif output_format in MANIFESTS and deployments:
        say(MANIFESTS[output_format](deployments[0], model_id), end="")
        if output_format == "kubernetes":
            _print_scaling(answer, "---")
        if answer.best is not None and (balancer := balancer_of(answer.best)) is not None:
            print_notes(f"these replicas were played behind another router than the manifest has: {balancer}")
    elif output_format == "html" and answer.best is not None:
        say(fleet_as_page(answer, answer.best), end="")
    elif answer.best is not None:
        _print_text(answer, answer.best, as_page=output_format == "md", explain=explain)
    if answer.best is None:
        print_notes(*answer.notes)
        raise no_fleet(answer)


def no_fleet(answer: FleetAnswer) -> KvplanError:
    """No fleet keeps the level: what came nearest, and by how much it misses."""
    request, nearest = answer.plan.request, answer.nearest
    limit = "at most " + plural(max(map(request.most_gpus, request.gpus)), "GPU")
    hint = "raise --max-gpus, loosen --slo, or ask for a --share-of-windows"
    if answer.formats:
        other = answer.formats[0].played
        hint = f"allow other formats (--quantization, --kv-cache-dtype): {fleet_name(other)} keeps it; or {hint}"
    if answer.was_interrupted:
        return KvplanError("Interrupted before any fleet was found that keeps the service level.", hint="let it go on")
    if nearest is None or not nearest.verdict.windows or nearest.verdict.deciding.worst is None:
        alone, why = answer.quickest, ""
        if alone is not None and alone.seconds > alone.bound.seconds / 2:
            why = f" Even with nobody beside them prompts take {1000 * alone.seconds:,.0f} ms ({alone.bound.word})."
        return KvplanError(
            f"No fleet of {limit} keeps {request.goal.text} over {answer.trace.path.name}.{why}", hint=hint
        )
    judged = nearest.verdict.deciding
    return KvplanError(
        f"No fleet of {limit} keeps {request.goal.text} over {answer.trace.path.name}. Nearest: {fleet_name(nearest)}, "
        f"whose {_figure(judged.worst)} in the window {_from(judged)}.",
        hint=hint,
    )


def _print_text(answer: FleetAnswer, best: Played, *, as_page: bool, explain: bool) -> None:
    lines = [*answer_lines(answer, best)]
    if as_page:
        say(f"**{answer.plan.spec.title}**\n")
        for line in lines:
            say(f"{as_markdown(line)}  ")
        return
    for line in lines:
        print_sentence(line, indent="", further="  ")
    balancer = balancer_of(best)
    print_commands(answer.plan.deployments[0], answer.plan, explain=explain, balancer=balancer)
    _print_windows(answer.plan.request.goal.slo.bounds(), best)
    _print_routers(answer)
    if answer.pools is not None:
        print_pools(answer.pools)
    if answer.policy is not None:
        print_policies(answer.policy)
        _print_scaling(answer, "")
    _print_others(answer, best)
    say()
    for note in fleet_assumptions(answer):
        print_sentence(note)
    print_sentence(_search_sentence(answer))


def answer_lines(answer: FleetAnswer, best: Played) -> Iterator[str]:
    """What to rent, whether it keeps the level, the worst window, what the cache finds, and what fails first."""
    plan, demand = answer.plan, answer.demand
    over = span_text(demand.requests[-1].sent)
    if answer.was_interrupted:
        yield "Interrupted: this is the best fleet that had been found by then."
    yield (
        f"{rent_text(plan.deployments[0])} for {plural(len(demand.requests), 'request')} over {over} "
        f"({answer.trace.path.name}) of {plan.spec.title}."
    )
    yield _keeps_sentence(answer, best)
    yield _worst_sentence(best)
    if _has_ticks(answer):
        yield "The file's clock is coarse: requests of a tick are sent at once. --spread-ticks may do with less."
    yield _cache_sentence(answer, best)
    if answer.growth is not None:
        yield growth_sentence(answer)
    if answer.formats:
        yield _formats_sentence(answer)
    if answer.pools is not None:
        yield answer.pools.verdict
    if answer.policy is not None:
        yield answer.policy.verdict


def _has_ticks(answer: FleetAnswer) -> bool:
    """Whether many requests of the file have one time."""
    return survey_file(answer.trace.path, answer.trace.part).bursts is not None


def _formats_sentence(answer: FleetAnswer) -> str:
    """The cheapest in other formats."""
    first = answer.formats[0].played
    cost = usd_per_hour(answer, first)
    price = "" if cost is None else f" at ${cost:,.2f}/h"
    return f"In other formats {fleet_name(first)} keeps it{price}."


def _keeps_sentence(answer: FleetAnswer, best: Played) -> str:
    goal, verdict = answer.plan.request.goal, best.verdict
    windows = f"every window of {span_text(answer.trace.window_seconds)}"
    if answer.trace.share_of_windows < 1:
        windows = (
            f"{len(verdict.windows) - verdict.num_broken} of {len(verdict.windows)} windows of "
            f"{span_text(answer.trace.window_seconds)} ({100 * answer.trace.share_of_windows:g} % asked for)"
        )
    if not goal.is_asked:
        return f"No --slo: half of the answers begin within 10 s and are written at 10 tokens/s, in {windows}."
    sure = 100 * verdict.confidence
    asked = 100 * goal.confidence
    return f"Keeps {goal.text} in {windows}: {sure:.0f} % sure in the worst ({asked:.0f} % asked for)."


def _worst_sentence(best: Played) -> str:
    judged = best.verdict.deciding
    figures = "; ".join(_figure(each) for each in judged.seen)
    rate = judged.window.requests_per_second
    return f"Worst window ({_from(judged)}, {rate:.3g} requests/s): {figures}."


def _figure(seen: ExpectedBound | None) -> str:
    """``p99 TTFT is 1,200 (800-1,900) of 2,000 ms``."""
    assert seen is not None, "a window has figures"
    bound = seen.bound
    statistic = "average" if bound.statistic == "mean" else bound.statistic
    figure = within(seen.figure.middle, seen.figure.between, 1000)
    return f"{statistic} {bound.name.upper()} is {figure} of {1000 * bound.seconds:,g} ms"


def _cache_sentence(answer: FleetAnswer, best: Played) -> str:
    plan = best.plan
    behind = f", behind {ROUTERS[plan.router].title}" if plan.replicas > 1 else ""
    if not plan.found.setup.pool.caches_prefixes:
        return f"No prefixes are cached{behind}."
    text = f"Prefix cache: {100 * best.hit_rate:.1f} % of the prompts' tokens are found{behind}"
    if answer.reused_share is None:
        return f"{text}: the file does not say what prompts share."
    text += f"; a cache that keeps everything would find {100 * answer.reused_share:.1f} %"
    other = answer.without_cache
    if other is None:
        return f"{text}."
    worst = other.verdict.deciding.worst
    return f"{text}. Without one, {_figure(worst)} in the busiest window."


def growth_sentence(answer: FleetAnswer) -> str:
    """How much more load it takes, and what is missed beyond."""
    growth = answer.growth
    assert growth is not None
    # Playing a file faster brings its ticks closer together; what comes at once in one stays as it was.
    ticks = ", its ticks closer but no fuller (--spread-ticks adds requests evenly)" if _has_ticks(answer) else ""
    if growth.is_capped:
        return f"Headroom: {growth.factor:.3g} x the load of the busiest window and more{ticks}."
    text = f"Headroom: {growth.factor:.2f} x the load of the busiest window{ticks}."
    if growth.breaks is None or growth.resource is None:
        return text
    goal = answer.plan.request.goal
    sure = f" with {100 * goal.confidence:.0f} % confidence" if goal.is_asked else ""
    return (
        f"{text} At {growth.factor_beyond:.2f} x this load, {growth.breaks.bound.word} is the first that is not kept"
        f"{sure}: {_figure(growth.breaks)}; {WORDS[growth.resource]}."
    )


def _print_windows(bounds: Sequence[Bound], best: Played) -> None:
    """The windows in order of time; where there are many, the worst ones."""
    windows = best.verdict.windows
    shown = windows
    if len(windows) > _MOST_WINDOWS:
        worst = sorted(windows, key=lambda each: -each.ratio)[:_MOST_WINDOWS]
        shown = tuple(each for each in windows if each in worst)
    rows = []
    for judged in shown:
        window = judged.window
        rows.append(
            (
                _from(judged).removeprefix("from "),
                f"{window.requests_per_second:.2f}",
                f"{100 * window.hit_rate:.0f} %",
                *(milliseconds(judged.of(each)) for each in bounds),
                f"{window.most_waiting:,}",
                f"{100 * window.most_kv_usage:.0f} %",
                f"{100 * judged.confidence:.0f} %",
            )
        )
    say()
    head = ("window from", "requests/s", "hits", *(f"{each.word} ms" for each in bounds), "waiting", "KV", "sure")
    print_table(None, head, rows, text_columns=(0,))
    if len(shown) < len(windows):
        print_sentence(f"the worst {len(shown)} of {len(windows)} windows; --json has all")


def _print_routers(answer: FleetAnswer) -> None:
    if len(answer.routers) < 2:
        return
    rows = []
    for name, played in answer.routers.items():
        judged = played.verdict.deciding
        figures = [f"{1000 * each.figure.middle:,.0f}" for each in judged.seen]
        rows.append((name, f"{100 * judged.window.hit_rate:.1f} %", *figures, "keeps" if played.keeps else "misses"))
    bounds = [f"{each.bound.word} ms" for each in next(iter(answer.routers.values())).verdict.deciding.seen]
    say()
    print_table(
        "The same replicas behind each router, in the busiest window:",
        ("router", "hits", *bounds, "level"),
        rows,
        text_columns=(0,),
    )


_FLEET_HEAD = ("fleet", "$/h", "replicas", "step tokens", "hits", "sure")


def _print_others(answer: FleetAnswer, best: Played) -> None:
    if answer.dearer:
        others = ", ".join(answer.dearer) if len(answer.dearer) <= _MOST_NAMED else f"{len(answer.dearer)} other GPUs"
        print_sentence(f"not on {others}: no fleet there that costs as little keeps it")
    fleets = [best, *answer.others]
    if len(fleets) > 1:
        say()
        title = "The cheapest fleet found of each GPU and format (those never cheaper are not played to the end):"
        print_table(title, _FLEET_HEAD, _fleet_rows(answer, fleets))
    if answer.formats:
        say()
        print_table(
            "Cheaper with other formats, on the same GPU:",
            _FLEET_HEAD,
            _fleet_rows(answer, [each.played for each in answer.formats]),
        )
        for caveat in dict.fromkeys(text for each in answer.formats for text in each.caveats):
            print_sentence(caveat)


def _fleet_rows(answer: FleetAnswer, fleets: Sequence[Played]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for played in fleets:
        plan, cost = played.plan, usd_per_hour(answer, played)
        rows.append(
            (
                fleet_name(played),
                "-" if cost is None else f"{cost:,.2f}",
                str(plan.replicas),
                f"{plan.found.tokens:,}",
                f"{100 * played.hit_rate:.1f} %",
                f"{100 * played.verdict.confidence:.0f} %",
            )
        )
    return rows


def _print_scaling(answer: FleetAnswer, separator: str) -> None:
    """What makes replicas come and go, where a policy is worth it."""
    best = None if answer.policy is None else answer.policy.found.best
    if best is None or answer.policy is None or not answer.policy.found.saved_share:
        return
    deployment, model_id = answer.plan.deployments[0], answer.plan.spec.served_id
    served = checkpoint_name(deployment, model_id)
    say(separator)
    say(scaling_manifests(model_id, served, deployment.prediction.version, best.played.policy), end="")


def _from(judged: WindowVerdict) -> str:
    """``from 0:25``: hours and minutes from the trace's first request on."""
    seconds = int(judged.window.start)
    minutes, rest = divmod(seconds, 60)
    tail = f":{rest:02d}" if rest else ""
    return f"from {minutes // 60}:{minutes % 60:02d}{tail}"


def _search_sentence(answer: FleetAnswer) -> str:
    plan = answer.plan
    return (
        f"Of {plan.num_tried:,} choices of GPU and layout, {answer.num_left_out:,} cannot keep the level with the GPUs "
        f"allowed; {plan.num_played:,} fleets were played in {answer.seconds:.0f} s. Brackets hold 9 in 10 published "
        "measurements of such predictions (docs/accuracy.md)."
    )


def draw_picture(answer: FleetAnswer, path: Path) -> None:
    """The pictures of the page as a PNG."""
    need_extra("plan --plot", "report")
    from kvplan.planner.answer.fleet_page import draw_fleet

    draw_fleet(answer, path)


def fleet_as_page(answer: FleetAnswer, best: Played) -> str:
    """The answer as one page."""
    from kvplan.planner.answer.fleet_page import fleet_page

    return fleet_page(answer, [*answer_lines(answer, best)])

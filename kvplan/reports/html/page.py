"""report.html: the recommendation first, then what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvplan.reports.html import sections
from kvplan.reports.html.markup import Html, join, tag
from kvplan.reports.html.style import CSS, SCRIPT
from kvplan.reports.pictures import Picture
from kvplan.runs.reader import Run


def report_page(run: Run, pictures: Sequence[Picture]) -> str:
    """The whole page of one run. ``pictures`` as ``draw_pictures`` returns them."""
    drawn = {picture.name: picture for picture in pictures}
    body = join(
        sections.header(run),
        navigation(has_level="slo" in drawn),
        sections.notes(run),
        sections.recommendation(run),
        sections.service_level(run, drawn.get("slo")),
        sections.boundaries(run, drawn["outcomes"]),
        sections.section("throughput", "Throughput and latency", *_shown(drawn, "throughput", "latency")),
        sections.section("pareto", drawn["pareto"].heading, *_shown(drawn, "pareto")),
        sections.section("occupancy", drawn["occupancy"].heading, *_shown(drawn, "occupancy")),
        sections.predictions(run, drawn["predicted_vs_measured"]),
        sections.section("memory", "Where the device's memory went", *_shown(drawn, "memory")),
        sections.waste(run, drawn["block_size"]),
        sections.trials(run),
        sections.legend(run),
        sections.environment(run),
    )
    return document(f"{run.first('model_id')} on {run.first('device_name') or run.first('device')}", body)


def document(title: str, body: Html) -> str:
    """The frame of a page: no address in it is ever fetched."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · kvplan"),
        tag("style", Html(CSS)),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", body, tag("script", Html(SCRIPT))), lang="en") + "\n"


def navigation(*, has_level: bool) -> Html:
    """Links to the sections."""
    places = {
        "recommendation": "Recommendation",
        **({"slo": "Service level"} if has_level else {}),
        "outcomes": "Boundaries",
        "throughput": "Throughput",
        "pareto": "Trade-off",
        "occupancy": "Occupancy",
        "predicted": "Predictions",
        "memory": "Memory",
        "waste": "KV waste",
        "trials": "Trials",
        "environment": "Environment",
    }
    return tag("nav", *(tag("a", label, href=f"#{place}") for place, label in places.items()), aria_label="sections")


def _shown(drawn: Mapping[str, Picture], *names: str) -> list[Html]:
    return [sections.picture(drawn[name]) for name in names if name in drawn]

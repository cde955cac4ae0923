"""``estimate --plot``: what decode steps consist of, over the number of sequences, for each deployment that fits."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvplan.errors import KvplanError
from kvplan.estimate.answer import EstimateAnswer
from kvplan.estimate.speed.device_speed import DeploymentSpeed
from kvplan.estimate.speed.step_picture import draw_steps, save_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_PANELS: Final = 9
_COLUMNS: Final = 3
_TITLE_WIDTH: Final = 54
"""Characters of a title's line above a panel."""


def draw_estimates(answers: Sequence[EstimateAnswer], path: Path) -> None:
    """Write the picture to ``path``. KvplanError when nothing fits or the file cannot be written."""
    save_picture(estimates_figure(answers), path)


def estimates_figure(answers: Sequence[EstimateAnswer]) -> Figure:
    """A panel for each of the first nine deployments that fit. KvplanError when none does."""
    panels = _panels(answers)[:_MOST_PANELS]
    if not panels:
        if any(each.fits for answer in answers for each in answer.deployments):
            raise KvplanError("No speed is told of these deployments, so there is no step to draw.", hint="use vLLM's")
        raise KvplanError("Nothing fits: there are no steps to draw.", hint="name a larger GPU, or more of them")
    from matplotlib.figure import Figure

    columns = min(len(panels), _COLUMNS)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(max(4.6 * columns, 6.4), 3.7 * rows + 0.9), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place >= len(panels):
            axes.set_visible(False)
            continue
        title, speed = panels[place]
        steps = speed.decode_steps()
        draw_steps(axes, [step.name.removesuffix(" decode") for step in steps], steps)
        axes.set_title(_in_lines(title), fontsize=10)
        axes.set_xlabel("sequences that decode at once")
    contexts = sorted({speed.lengths.average_context for _, speed in panels})
    lengths = f"{contexts[0]:,} tokens each" if len(contexts) == 1 else "sequences of the lengths asked for"
    figure.suptitle(f"{_subject(answers)}: decode steps, {lengths}", fontsize=11)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    in_a_row = len(labels) if columns == _COLUMNS else math.ceil(len(labels) / 2)
    figure.legend(handles, labels, loc="outside lower center", ncols=in_a_row, fontsize=9)
    return figure


def _in_lines(title: str) -> str:
    """No wider than a panel; what differs in format stands below what differs in model and GPU."""
    return "\n".join(line for part in title.split("\n") for line in textwrap.wrap(part, _TITLE_WIDTH))


def _subject(answers: Sequence[EstimateAnswer]) -> str:
    models = list(dict.fromkeys(answer.spec.served_id for answer in answers))
    return models[0] if len(models) == 1 else f"{len(models)} models"


def _panels(answers: Sequence[EstimateAnswer]) -> list[tuple[str, DeploymentSpeed]]:
    """(title, speed): GPUs, and of what differs between answers the model and the KV cache's format."""
    many_models = len({answer.spec.served_id for answer in answers}) > 1
    many_formats = len({(answer.kv_dtype, _weights(answer)) for answer in answers}) > 1
    found: dict[str, DeploymentSpeed] = {}
    for answer in answers:
        for deployment, speed in zip(answer.deployments, answer.speeds, strict=True):
            if speed is None:
                continue
            parts = [answer.spec.served_id.rsplit("/", 1)[-1]] if many_models else []
            parts.append(deployment.counted_gpu)
            formats = f"\n{_weights(answer)} weights, {answer.kv_dtype} KV" if many_formats else ""
            found.setdefault(", ".join(parts) + formats, speed)
    return list(found.items())


def _weights(answer: EstimateAnswer) -> str:
    return max(answer.weights.components, key=lambda each: each.num_bytes).format

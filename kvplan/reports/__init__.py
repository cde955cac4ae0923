"""Reports from a run directory: plots, a self-contained page, tables as text, and the comparison of two runs.

    from kvplan.reports import write_reports
    write_reports(Path("runs/gpt2"))      # -> the files it wrote next to the rows

``kvplan sweep`` calls ``write_reports`` when it is done, ``kvplan report`` calls ``reports.writing``. Nothing here runs
anything: all of it is made from ``kvplan.runs.storage.reader.Run``, with as many of the directory's files as there are.

writing.py     files and text: the entry point of the commands
selection.py   which trials a picture shows: slices and lines near the best trial, the worst, medians, the Pareto front
outcome_map.py outcomes over two settings, and what is known of each pair of values
findings.py    sentences and recommendations; searches.py: the searches for the highest load within the SLO
comparison.py  two runs joined by their settings; side_by_side.py: runs of several engines by what they share;
               fleet.py: several devices, what each did at its fastest setting and what that costs
tables.py      CSV, JSON and Markdown
wording.py     numbers, settings and phrases as reports write them; looks.py: colours and hatching of the statuses
pictures.py    the list of plots, which plots/ draws; html/ makes the page; caches.py: picture and page of prefix caches
"""

from __future__ import annotations

from pathlib import Path


def write_reports(directory: Path) -> list[Path]:
    """Draw every plot of a run directory as PNG and write its report.html, next to the rows; returns the files.

    KvplanError if the directory is missing, holds no finished trial, or cannot be written.
    """
    # pandas and matplotlib take a second to import: only who wants a report waits for them.
    from kvplan.reports.writing import write_all

    return write_all(directory)

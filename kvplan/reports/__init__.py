"""Reports from a sweep's stored rows: pictures, a page that stands alone, tables.

from kvplan.reports import write_reports
write_reports(Path("runs/gpt2"))      # -> the files it wrote beside the rows
"""

from __future__ import annotations

from pathlib import Path


def write_reports(directory: Path) -> list[Path]:
    """Draw every picture of a run directory into it as PNG and write its report.html; returns the files.

    KvplanError when the directory is missing, holds no finished trial, or cannot be written.
    """
    # matplotlib takes half a second to import: only who wants a report pays for it.
    from kvplan.reports.writing import write_all

    return write_all(directory)

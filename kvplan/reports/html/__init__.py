"""The HTML pages: one self-contained file, for a phone, a screen or paper.

page.py             report.html: what its template is given
comparison_page.py  comparison.html, likewise; side_by_side_page.py: engines.html; caches_page.py: of kvplan cache
tables.py           the cells of the tables
rendering.py        the Jinja2 environment: escaping, filters
templates/          the markup (report, comparison, profile, document around both, macros), style.css and script.js

``kvplan.reports.writing`` calls ``report_page`` and ``comparison_page``.
"""

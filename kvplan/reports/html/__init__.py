"""The HTML pages: one self-contained file, for a phone, a screen or paper.

page.py             report.html: what its template is given
tables.py           the cells of the tables
side_by_side_page.py  comparison.html of two runs, engines.html of several
rendering.py        the Jinja2 environment: escaping, filters
templates/          the markup (report, comparison, profile, document around both, macros), style.css and script.js

``kvplan.reports.writing`` calls ``report_page`` and ``comparison_page``.
"""

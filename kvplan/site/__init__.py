"""The page that ``kvplan web`` serves or writes: static files, the planner as an archive, and Pyodide.

The page itself lies in the folder ``page``: HTML, CSS and ES modules as they are served. It has no formula.

writing     the whole site in a folder; Pyodide's files: from a folder, or the npm registry's archive of one version,
            kept in the cache
serving     a folder on loopback
"""

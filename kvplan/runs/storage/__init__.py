"""A run directory on disk: written so that rows survive a crash, and read even where it is damaged.

files    appended lines that survive a crash, files replaced as a whole
requests what is kept of each request
store    a sweep's directory while it is written
reader   tolerant reading, for reports of damaged or unfinished directories
"""

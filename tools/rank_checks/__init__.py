"""The parts of tools/check_ranks.py.

tokens   every model over every grid of ranks and stages, beside one process
killed   a sweep in which a rank is killed
page     both as Markdown
"""

"""Real engines under sweeps: what tools/check_engines.py runs, provokes and writes.

runs      a part of the check: one sweep, as a user starts it
failures  failures provoked for real, and what they are taken for
killed    a sweep killed by SIGKILL and continued
report    the page, and what was not as predicted
"""

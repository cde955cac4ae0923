"""kvplan: KV-cache capacity planner and profiler for LLM serving. Importing it never imports torch.

cli, __main__       the program, which imports only the command that is asked for; help_sections: its help in sections;
                    list_words: lists on a command line; terminal: sentences in lines as wide as the terminal
commands            one module per command: parse, call, print
bench, profiling    the benchmark of paging; one setting step by step
top, load           running servers live; loading one and saying what bound it
engines             other engines in a sweep
calibrate           speeds fitted to measured rows
planner, explaining from a load to deployments; from a start-up log to what to change
sweeps, reports     running trials; plots, tables and pages of their rows
runs                a run directory and its rows
estimate            memory and speed by formula
catalog             models, GPUs and engine releases
machine, workload   what this host is; requests and arrivals
workers, metrics    worker processes and their messages; what engines' metrics pages say
settings            every knob of a deployment, declared once
files, foreign_text  files that a user names: regular, bounded, as text or JSON; what others wrote, made safe to print
units, paths, errors  amounts as text, where data lies, the one error a user sees

Rooms only import rooms below them: the order is in pyproject.toml.
"""

__version__ = "0.1.0"

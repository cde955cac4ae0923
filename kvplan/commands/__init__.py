"""The command line, one module per command: parse, ask the room below, print. No arithmetic here.

Each command is a function in a module, both of its name; kvplan/cli.py imports only the one that is asked for.

estimate, plan, explain, models, gpus    sizing; they start without torch, pandas and matplotlib
cache                                    hits of a trace over the size of a prefix cache; starts as these do
web                                      the planner as a page in a browser
sweep, bench, profile                    measuring with kvplan's engine
doctor                                   what this machine has, and whether its kernels are right
serve, load, top                         the engine behind an API; loading and watching any server
merge                                    shards of a sweep as one run
calibrate, report                        what is made of measurements
options/, printing/                      from options to questions; from answers to tables and documents
"""

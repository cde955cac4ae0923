"""The command line, one module per command: parse, ask the room below, print. No arithmetic here.

Each command is a function in a module, both of its name; kvplan/cli.py imports only the one that is asked for.

estimate, plan, explain, models, gpus    sizing; they start without torch, pandas and matplotlib
sweep, bench, calibrate, report          measuring, and what is made of measurements
setting_options                          options made from the declared settings (kvplan.settings)
shared_options, option_groups            options in common; dataclasses of options
estimate_output, sweep_output, render    how answers are printed
"""

"""How options become what a command asks: typer's side of the settings, lists, and what commands share.

groups           a command's options as dataclasses
settings         options made from the declared settings
shared           arguments and options that several commands have; which part of a workload's file is used, and how it
                 is read
plans            the options of `plan` in groups, those of a trace's fleet too, and the question that they ask
sweeps           the options of `sweep`, some of which `profile` has too
estimate_lists   several models, contexts and formats in one `estimate`
extras           a hint where a command's packages are not installed
"""

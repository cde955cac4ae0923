"""How options become what a command asks: typer's side of the settings, lists, and what commands share.

groups           a command's options as dataclasses
settings         options made from the declared settings
shared           arguments and options that several commands have
plans            the options of `plan` in groups, and the question that they ask; how requests of a load follow and
                 resemble each other
fleets           what keeps a service level over a trace, and what replicas stand behind; prefill and decode apart,
                 replicas that come and go
trace            which part of a workload's file is used, and how it is read
sweep/           the options of `sweep`, by what they set
estimate_lists   several models, contexts and formats in one `estimate`
extras           a hint where a command's packages are not installed
"""

"""``kvplan explain``: from an engine's start-up log to where the memory went, what differs, and what to change.

startup_log, patterns    what the log says, and how engines word it
stated_settings          the settings that it states in any form, and those of commands pasted beside it
which_gpu                the GPU profiles that fit it
learned                  what it teaches for predictions of the same model and GPU with other settings
account                  its lines: each part of the memory, logged and predicted; whether the log's cache lies in the
                         predicted interval, and what may be why where not
explanation              ``explain_log``: the log against our prediction, and the changes that would help
reading                  a log from a file or a pipe; the model that it is of
ways_out                 what helps an engine that stopped, from its own words
cpu_host                 the account of vLLM on a CPU
document                 an explanation as JSON
"""

"""What commands print: tables as wide as the terminal, documents, rows; data on stdout, talk on stderr.

render                           the formats that every command offers; how a table fits a terminal
estimates, estimate_rows         an estimate; several in one table, and intervals
estimate_parts, queues           its speeds, blocks and drafter; percentiles of a load, terms of a step
explanations, known              what `explain`, `models` and `gpus` print
plans, plan_sentences            what `plan` prints: the answer, beside one without a command's settings; its sentences
plan_tables, plan_page           its tables; a page of sentences and tables
fleets, fleet_progress           what `plan` prints of a trace: the fleet, and what is found while it runs
fleet_wishes                     pools and policies beside that fleet
sweeps, loads                    what `sweep` and `load` print
calibrations                     what `calibrate` prints
caches                           what `cache` prints
"""

"""What a trial is expected to do before it runs, made from the estimates of ``kvplan.estimate``.

prediction       Predictor: outcome, memory, speed and time of a trial; continuous batching of the trial's requests,
                 simulated from lengths alone
pool             what a sweep needs to know of an engine's predicted memory
deployed         a GPU that is only counted, as a server of vLLM divides its memory
step_cost        what a step costs on a device that was never measured
under_load       the same for trials with an arrival rate or concurrency of their own; whether a load is expected to
                 meet the service level
drafting         what drafts should have gained, at the acceptance that was measured
timing           time left, and how long a trial may take; learns from the trials so far
"""

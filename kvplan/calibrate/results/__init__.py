"""Speeds from results that users already have: other engines' loads and timed batches, whichever benchmark saved them.

calibration.py    the whole of it: read, match, fit, score
reading.py        files and folders, recognised by what is in them
kvplan_sweep.py, vllm_serve.py, vllm_sweep.py, vllm_forward.py, guidellm.py, aiperf.py   a reader for each format
outcome.py        what readers make: loads and timed batches
fields.py         typed values of JSON that others wrote
served.py         model, device, engine and settings, from a file and from options
deployment.py     these as a deployment that can be simulated
matching.py       results of one device and engine, or a refusal
ranks.py          the steps of one rank
observing.py      results as observations: loads simulated, batches as they are
prior.py          what is believed before
learning.py       the fit to what is determined, and its errors
profile.py        the measured profile
"""

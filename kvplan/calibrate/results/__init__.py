"""Speeds from results that users already have: other engines' loads and timed batches, whichever benchmark saved them.

reading.py        files and folders, recognised by what is in them
readers/          one file for each format
outcome.py        what readers make: loads and timed batches
served.py         model, device, engine and settings, from a file and from options
deployment.py     these as a deployment that can be simulated
matching.py       results of one device and engine, or a refusal
observing.py      results as observations: loads simulated, batches as they are; the steps of one rank
learning.py       the fit to what is determined, and its errors
calibration.py    the whole of it: read, match, what is believed before, fit, score; the measured profile
"""

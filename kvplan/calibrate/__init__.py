"""Predictions fitted to measurements: a sweep's rows become the few coefficients of the step-time model.

``kvplan calibrate`` fits, scores the fit on settings that it did not see, and writes a measured
profile (``kvplan.catalog.devices.measured``) that ``estimate``, ``plan`` and ``sweep`` use on that device from then on.

calibration.py   the whole of it: read, split, fit, score, profile
trials.py        rows of run directories -> trials that can be simulated: requests, limits, model, device
observations.py  a trial simulated again -> what each of its steps computed, beside how long it took
fit.py           observations -> coefficients (robust least squares)
scoring.py       the split by settings, and the errors of predictions
peaks.py         what the device can reach at most, measured here or from the data sheet; the fitted coefficients in
                 units for people
results/         results of other engines, whichever benchmark saved them
own_server.py    a user's results as factors of one server's predicted times, for plan and estimate
"""

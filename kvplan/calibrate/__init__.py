"""Predictions that learn from a sweep: rows become the few coefficients of the step-time model, with their error."""

"""Coefficients of GPUs from tables of measured kernels. Needs aiconfigurator-core, in an environment of its own.

models      the models that are sampled, as the tables and as kvplan know them
sampling    seconds of steps, as the tables add them up
fitting     robust fit of logarithms: dense models first, then what mixtures and latent attention cost
all_reduces what ranks of GPUs without NVLink send each other, from tables of that alone
errors      how far the fit is off, by kind of model and with a model left out
"""

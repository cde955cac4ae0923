"""The options of ``kvplan sweep``, some of which ``profile`` has too.

panels      headings of the help, and the defaults that it names
model       the model, its weights, the device
engine      who serves
axes        the settings that are swept
workload    the requests, and how they arrive
goals       a service level, searches, boundaries, repetitions
spread      several machines
"""

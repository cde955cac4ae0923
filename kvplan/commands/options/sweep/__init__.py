"""The options of ``kvplan sweep``, some of which ``profile`` has too.

model       the model, its weights, the device; the requests, and how they arrive; headings of the help, and the
            defaults that it names
engine      who serves; a service level, searches, boundaries, repetitions; several machines
axes        the settings that are swept
"""

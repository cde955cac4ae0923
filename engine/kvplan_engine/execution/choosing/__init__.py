"""Which tokens a step gives.

chooser            by the kernel that draws, where there is one, else the likeliest or the sampler's
draws              how tokens are chosen on a device, where captured steps read it
"""

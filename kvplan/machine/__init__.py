"""The machine that measurements run on, known without torch. Used by sweeps, bench, calibration and the manifest.

device          the CPU or GPU that ``--device`` stands for, and its memory; the same as a worker says that opened it
visible_gpu     the GPU that a process computes on, as the driver lists it; the GPU's clock while it works
host            processor name, bfloat16 units, cores, free memory; the commit of the checkout that kvplan runs from;
                what limits of containers leave of memory; whether the kernel killed a process for memory; CPU time that
                other processes use meanwhile
"""

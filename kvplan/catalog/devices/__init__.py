"""Devices as types: what the driver reports, dense speed, links, price, and what was measured.

gpu_profile      a GPU or CPU host, every number with its source; prices given on the command line
gpus             the shipped ones, found by exact alias, as rows and as a document; what is said of devices without a
                 profile
slices           MIG slices of them, by nvidia-smi's names
clouds           instances that clouds rent, by name: their GPUs and their prices
device_support   what vLLM refuses on older GPUs
measured         which measured speeds speak for a device or, scaled, its relatives; the files of `kvplan calibrate`
measured_profile one such profile
server_scale     what its user measured of a server: factors of predicted times
kernel_tables    profiles that ship, fitted to tables of measured kernels
"""

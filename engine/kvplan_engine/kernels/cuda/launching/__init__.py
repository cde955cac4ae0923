"""Kernels compiled, loaded and launched.

runtime     what a device has to offer: its properties, kernels that can be launched, tensors of which boxes are copied
driver      that, from the CUDA driver
emulation   that, on the CPU, for tests
variants    a source with its compile-time shape
nvrtc       compiles one, and keeps it
families    names of what one verdict is about, and one twin stands in for
"""

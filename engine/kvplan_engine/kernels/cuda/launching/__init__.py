"""Kernels compiled, loaded and launched.

runtime     what a device has to offer: its properties, and kernels that can be launched
driver      that, from the CUDA driver; launch_config: its structures of a launch with attributes
emulation   that, on the CPU, for tests
variants    a source with its compile-time shape
nvrtc       compiles one
families    names of what one verdict is about, and one twin stands in for
cache       keeps what was compiled
tensor_map  tensors of which boxes are copied
"""

"""A mixture of experts.

mixture     its steps
product     one product of it
launch      how its kernels are compiled and launched
memory      what lies between the steps
"""

"""Trials on several workers at once, whoever lends them: workers come and go, and every trial ends with one row.

hosts     what a pool of workers has to offer, and how it says that one is lost
runner    hands out trials, writes the rows, gives a lost worker's trial to another
"""

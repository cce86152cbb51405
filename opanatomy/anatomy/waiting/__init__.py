"""Waiting separated from transfer: the collectives of several ranks, matched, on one clock.

tables of all ranks -> matching -> clocks -> matching of the rest by time -> parts of each step, charges
"""

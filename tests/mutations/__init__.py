"""Faults put into the code that decides about drafts, one at a time: each must make a test fail."""

"""Faults of worker processes, and what is left when all is over."""

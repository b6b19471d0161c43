"""Tests of faults in worker processes; each test must leave nothing behind."""

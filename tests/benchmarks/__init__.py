"""Measurements of speed, run by hand: ``python -m tests.benchmarks.<name>``. Never part of a timed test."""

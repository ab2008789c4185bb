"""Decisions under uncertainty, all pure: chances of keeping a limit, expected values, the worth of a measurement."""

"""Metering what a node draws while it measures or trains: counters of energy, samples of power, or nothing."""

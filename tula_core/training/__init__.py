"""Training at a plan's choice, in worker processes, into an `Outcome`."""

"""What all fits share: robust maximum a posteriori fits, draws, the scatter of a machine."""

"""Step times on machines that were not measured: more of the same accelerators, or another node type."""

"""Power of accelerators by batch size and power limit, and the time and energy that follow from it."""

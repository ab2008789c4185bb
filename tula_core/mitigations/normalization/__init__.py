"""Methods that keep the noise of batch norm at a small batch's level."""

"""Methods that average weights, over time or over processes."""

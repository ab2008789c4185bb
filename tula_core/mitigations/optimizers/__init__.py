"""Methods that bring an optimizer of their own, or take the gradient a second time."""

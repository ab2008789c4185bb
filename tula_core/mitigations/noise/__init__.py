"""Methods that give a large batch's gradient the noise of a small one's."""

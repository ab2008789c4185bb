"""Methods that set the learning rate: rules of the batch size, warm-ups, gains that follow the measured noise."""

"""Methods that change the batch size while training: on a schedule, by the measured noise, or among processes."""

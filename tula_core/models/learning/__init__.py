"""What training learns: loss and accuracy by samples and batch size, schedules, the fit to pilots."""

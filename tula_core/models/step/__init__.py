"""The time of one optimizer step: equations, communication, the fit to what was measured."""

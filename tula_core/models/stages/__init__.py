"""Forecasts of runs whose batch, or whose nodes, change on the way."""

"""Search: from forecasts to a plan.

`api.make_plan` enumerates what the cluster allows, asks a predictor for forecasts, holds them against the job's limits,
records all of it in an Optuna study, and chooses on the Pareto front of time and cost. The predictor is an argument:
anything with the shape of `forecaster.Forecaster` will do.
"""

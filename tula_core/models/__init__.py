"""Performance and statistical models: what a candidate costs in time, memory, money and energy, and what it learns.

Only numpy and scipy. Each equation is a pure function with its source; each fit is a robust maximum a posteriori fit
with a Laplace interval; `tula_core.models.predictor` puts them together. Import from the modules: this file loads
nothing, so that the learning-rate schedules can be used without the fits.
"""

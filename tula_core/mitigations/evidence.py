"""What each method of ``mitigation: auto`` is known to do to learning, and where each number is from.

All of it is relative to a run by the optimizer's rule of the rate that stays stable, whose work (samples to a level of
the metric) rises as (B + B_crit)/(B0 + B_crit) (McCandlish et al. 2018, arXiv 1812.06162, eq. 2.11). The numbers rest
on trainings of four small image classifiers to equal epochs at 16 to 64 times the reference batch, on their validation
splits or with rates that were tuned, and on the papers of the cards. Where these disagree the standard deviation says
so; none is below 0.5, for the networks were small.

How they were derived: among fixed batches with tuned rates, ln of the error that is left rose by 0.08 to 0.16 for
each unit of ln work. Divided by that slope, what a method left over the small batch's is ln of its work; less ln of
the law's, it is the method's own. Far from the small batch's accuracy the slope is steeper, so that these are upper
bounds; what is robust is the order. On validation splits, at the small batch's own rate, two seeds, in per cent:

    network and batch              small  growth  LARS  square-root rule, no warm-up
    perceptron, 2048 over 32        88.3    87.2  81.9                          80.5
    convolutions, 2048 over 64      87.3    85.1  76.5                          75.2
    perceptron, 4096 over 64        89.7          84.0                          84.9

- ``sqrt-lr`` with SGD: 1.6, 1.9, 2.6 and 3.5 at 64, 64, 32 and 16 times the batch, against 2.1, 2.1, 1.7 and 1.4 that
  its lower rate alone, (B/B0)^(1/2), would cost. Taken: 1.5 less of ln B_crit, and half the power of the rate.
- ``lars``: with its rate tuned 0.0, 1.2, 0.0 and -0.2; with the small batch's own rate, which ``auto`` has, 3 to 5. A
  tuned Nesterov rate reaches the same (Nado et al. 2021, arXiv 2102.06356). Taken: 1.5 less of ln B_crit, widely.
- ``schedule-free`` with the square-root rule (the linear one in brackets), validation splits, two to four seeds: the
  perceptron at 4, 16 and 64 times a batch of 32 gave 87.8 (88.1), 87.5 (87.1) and 83.0, the convolutions at 2.5, 4, 8
  and 32 times 64 gave 87.5, (87.4), 84.4 and 73.8, digits at 4 and 16 times 32 gave 98.4 (98.3) and 98.0 beside 98.7.
  That is the law's work times exp of 0.2, -0.1 and at most 1.5, -0.6, -0.8 and 0.3, without the steps that growth
  takes at small batches. At 64 times the linear rule's rate had to be halved three times. Taken: as the law says,
  which undoes what ``sqrt-lr`` costs, with 0.5.
- ``lamb``: with its rate tuned -0.1, 3.4, 0.0 and 1.4. Taken as LARS.
- ``growth``: the law summed over its stages missed by 0.3 and 0.9 with the small batch's rate, by -0.3, -0.6 and less
  where the rate was tuned. Taken: as the law says, with 0.5. Its rate never rises, so that no run is lost to it.
- ``seesaw``: nothing was measured; 36 % less time at equal loss (Meterez et al. 2025, arXiv 2510.14717, abstract).
  Taken as growth.
"""

from __future__ import annotations

from tula_core.records import MitigationEffect

_GROWING = MitigationEffect(log_work_sd=0.5, rate_power=0.0)
_LAYERWISE = MitigationEffect(log_critical=-1.5, log_critical_sd=1.0, log_work_sd=0.5, rate_power=0.5)

_SQRT_CRITICAL = -1.5

EFFECTS = {
    "sqrt-lr": MitigationEffect(log_critical=_SQRT_CRITICAL, log_critical_sd=1.0, rate_power=0.5),
    "schedule-free": MitigationEffect(log_critical=-_SQRT_CRITICAL, log_work_sd=0.5),
    "lars": _LAYERWISE,
    "lamb": _LAYERWISE,
    "growth": _GROWING,
    "seesaw": _GROWING,
}
"""By the names of the methods; a method that is not here is not known to do anything."""

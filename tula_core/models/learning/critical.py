"""B_crit before learning curves are looked at: from what is usual, and from gradient noise as a weak witness."""

from __future__ import annotations

import math

from tula_core.models.learning.work import work_prior

# A pilot's noise scale is that of the beginning of training, when gradients agree most: in trials on two cores it was
# right for one network and 2 to 7 times below the B_crit of steps to a target for two others. Averaged over a whole
# training it is 2 to 8 times above (McCandlish et al. 2018, arXiv 1812.06162, table 2). So it is one more observation,
# good to an order of magnitude; with what is usual beside it, moving it by a bias made forecasts no better.
_NOISE_LOG_SD = 1.0
# The range of a published curve is chosen around B_crit with care; the batch of a recipe may lie anywhere below it. In
# single runs of other networks B_crit was from twice to more than a hundred times the batch of the recipe.
_RECIPE_LOG_SD = 1.0
_NOISE_REACH = 30.0  # a noise scale further from what is usual than so many times is a failed measurement


def critical_prior(noise_scale: float | None, reference_batch: int) -> tuple[float, float]:
    """Return mean and standard deviation of ln B_crit before pilots are looked at.

    What is usual is that of `tula_core.models.learning.work.WorkPrior.critical` above the reference batch; both are
    weighed by their precision.

    Parameters
    ----------
    noise_scale
        tr(Sigma)/||G||^2 in samples (McCandlish et al. 2018, eq. 2.9), None where it is not known.
    reference_batch
        Batch of the recipe, the smallest of interest.
    """
    usual, curve_sd = work_prior().critical(math.log(reference_batch), None)
    usual_sd = math.hypot(curve_sd, _RECIPE_LOG_SD)
    if not noise_scale:
        return usual, usual_sd
    reach = math.log(_NOISE_REACH)
    seen = min(max(math.log(noise_scale), usual - reach), usual + reach)
    share = usual_sd**2 / (usual_sd**2 + _NOISE_LOG_SD**2)
    return usual + share * (seen - usual), usual_sd * math.sqrt(1.0 - share)

"""Every method with its card. The hooks are named and not imported: listing the methods loads no torch."""

from __future__ import annotations

from tula_core.mitigations.card import Bounds, MitigationCard
from tula_core.mitigations.card import excluding as _excluding
from tula_core.mitigations.evidence import EFFECTS
from tula_core.mitigations.inputs.cards import INPUTS
from tula_core.registry import Registry

_RATE = "it sets the learning rate too"
_CLOCK = "it moves the learning-rate schedule too"
_OPTIMIZER = "it brings an optimizer too"
_BATCH = "it changes the batch size too"
_AVERAGE = "it evaluates an average of the weights too"
_INVARIANT = "its steps do not depend on the size of the gradient, so a gain from its noise means nothing"
_LOCAL = "processes that step on their own have no common gradient to measure"


_RULES = "linear-lr sqrt-lr saturating-lr legw autowu"
_GROWING = "growth seesaw adaptive-batch"
_MEMORY = Bounds(default=0.9, low=0.0, high=0.9999, meaning="weight of the past after a reference batch's samples")


MITIGATIONS: Registry[MitigationCard] = Registry(
    "mitigation",
    (
        "linear-lr",
        MitigationCard(
            summary="learning rate times B/B0; for SGD",
            source="Goyal et al. 2017, arXiv 1706.02677",
            place="learning rate",
            excludes=_excluding("linear-lr", (_RULES, _RATE)),
        ),
    ),
    (
        "sqrt-lr",
        MitigationCard(
            summary="learning rate times sqrt(B/B0); for Adam and its relatives",
            source="Krizhevsky 2014, arXiv 1404.5997",
            place="learning rate",
            effect=EFFECTS["sqrt-lr"],
            excludes=_excluding("sqrt-lr", (_RULES, _RATE)),
        ),
    ),
    (
        "saturating-lr",
        MitigationCard(
            summary="learning rate linear in the batch up to the noise scale, constant beyond",
            source="McCandlish et al. 2018, arXiv 1812.06162",
            place="learning rate",
            options={
                "noise_scale_samples": Bounds(default=500, low=1, high=1e9, meaning="noise scale, from the profile")
            },
            excludes=_excluding("saturating-lr", (_RULES, _RATE)),
        ),
    ),
    (
        "warmup",
        MitigationCard(
            summary="learning rate rises per step from the reference rate over the first tenth of the run",
            source="Goyal et al. 2017, arXiv 1706.02677, section 2.2",
            place="learning rate",
            options={"share": Bounds(default=0.1, low=0.0, high=0.5, meaning="share of the run that warms up")},
            excludes=_excluding("warmup", ("legw autowu", _RATE)),
        ),
    ),
    (
        "legw",
        MitigationCard(
            summary="square-root rule with a warm-up that takes the same steps at every batch",
            source="You et al. 2019, arXiv 1901.08256",
            place="learning rate",
            options={"share": Bounds(default=0.01, low=0.0, high=0.15, meaning="warm-up share at the reference batch")},
            excludes=_excluding("legw", (_RULES, _RATE), ("warmup", _RATE)),
        ),
    ),
    (
        "adascale",
        MitigationCard(
            summary="learning rate and schedule follow how much the larger batch really lowers the noise",
            source="Johnson et al. 2020, arXiv 2007.05105",
            place="learning rate",
            entry="tula_core.mitigations.rates.adascale:AdaScale",
            options={"memory": _MEMORY},
            step_cost=1.03,
            parameter_copies=1.0,
            excludes=_excluding(
                "adascale",
                (_RULES + " warmup", _RATE),
                (_GROWING, _CLOCK),
                ("lars lamb", _INVARIANT),
                ("post-local-sgd", _LOCAL),
            ),
            optimizers=frozenset({"sgd"}),
        ),
    ),
    (
        "autowu",
        MitigationCard(
            summary="learning rate rises until the loss stops falling, then decays",
            source="Kim et al. 2021, arXiv 2107.05855",
            place="learning rate",
            entry="tula_core.mitigations.rates.autowu:AutoWU",
            options={
                "lowest": Bounds(default=1e-5, low=1e-9, high=1.0, meaning="rate at the start"),
                "highest": Bounds(default=1.0, low=1e-6, high=100.0, meaning="rate that would be reached"),
                "warmup_share": Bounds(default=0.5, low=0.01, high=0.9, meaning="share of the run until then"),
                "patience": Bounds(default=3, low=1, high=100, meaning="epochs in a row that must agree"),
                "confidence": Bounds(default=0.95, low=0.5, high=0.9999, meaning="chance that counts as agreed"),
            },
            rising=("lowest", "highest"),
            excludes=_excluding("autowu", (_RULES + " warmup legw adascale", _RATE), (_GROWING, _CLOCK)),
        ),
    ),
    (
        "growth",
        MitigationCard(
            summary="the batch grows from the reference's to the planned one while the rate is held",
            source="Smith et al. 2018, arXiv 1711.00489",
            place="batch size",
            entry="tula_core.mitigations.batches.hooks:Growth",
            effect=EFFECTS["growth"],
            options={
                "until": Bounds(default=0.8, low=0.0, high=0.95, meaning="share of the run at which it is reached"),
                "factor": Bounds(default=2.0, low=1.1, high=16.0, meaning="growth from one stage to the next"),
                "start": Bounds(default=1.0, low=1.0, high=16.0, meaning="times the reference batch to begin with"),
            },
            excludes=_excluding("growth", (_GROWING, _BATCH), (_RULES + " warmup", _RATE), ("adascale", _CLOCK)),
        ),
    ),
    (
        "seesaw",
        MitigationCard(
            summary="where the schedule lowers the rate, the batch grows for a part of it",
            source="Meterez et al. 2025, arXiv 2510.14717; for SGD Smith et al. 2018",
            place="batch size",
            entry="tula_core.mitigations.batches.hooks:Seesaw",
            effect=EFFECTS["seesaw"],
            options={"factor": Bounds(default=2.0, low=1.05, high=16.0, meaning="growth from one stage to the next")},
            excludes=_excluding("seesaw", (_GROWING, _BATCH), (_RULES + " warmup", _RATE), ("adascale", _CLOCK)),
        ),
    ),
    (
        "adaptive-batch",
        MitigationCard(
            summary="the batch grows as the measured noise scale does",
            source="McCandlish et al. 2018, arXiv 1812.06162, appendix D",
            place="batch size",
            entry="tula_core.mitigations.batches.hooks:AdaptiveBatch",
            options={
                "share": Bounds(
                    default=0.5, low=0.01, high=10.0, meaning="of the noise scale that the batch should be"
                ),
                "cooldown": Bounds(default=0, low=0, high=100, meaning="epochs to wait after a change"),
                "memory": _MEMORY,
            },
            step_cost=1.03,
            parameter_copies=1.0,
            excludes=_excluding(
                "adaptive-batch", (_GROWING, _BATCH), (_RULES + " warmup", _RATE), ("post-local-sgd", _LOCAL)
            ),
        ),
    ),
    (
        "dual-batch",
        MitigationCard(
            summary="some processes take several updates on small batches in the time of one on a large batch",
            source="Lu et al. 2025, arXiv 2509.26092",
            place="batch size",
            entry="tula_core.mitigations.batches.rounds:DualBatchRounds",
            options={
                "small_share": Bounds(
                    default=0.5, low=0.25, high=0.75, meaning="share of processes with small batches"
                ),
                "extra": Bounds(default=1.05, low=1.0, high=1.2, meaning="time of an epoch over that of a plain one"),
                "fixed_samples": Bounds(
                    default=30, low=1, high=1e5, meaning="samples that take as long as the fixed part of a step"
                ),
            },
            step_cost=1.05,
            parameter_copies=3.0,
            cost_option="extra",
            least_processes=2,
            precisions=frozenset({"fp32", "bf16"}),
            excludes=_excluding(
                "dual-batch",
                (_GROWING, _BATCH),
                (_RULES + " adascale", "its small batches train at the recipe's rate, which is not theirs once scaled"),
                ("post-local-sgd sam", "it makes updates of its own within a step too"),
                ("lars lamb schedule-free", "it brings together momenta as plain SGD makes them"),
                ("rank-noise", "it weighs the micro-batches of all processes as parts of one gradient"),
            ),
            optimizers=frozenset({"sgd"}),
        ),
    ),
    (
        "lars",
        MitigationCard(
            summary="SGD whose update of each layer is a fixed share of its weights",
            source="You et al. 2017, arXiv 1708.03888",
            place="optimizer",
            entry="tula_core.mitigations.optimizers.layerwise:Lars",
            effect=EFFECTS["lars"],
            options={
                "trust": Bounds(default=0.02, low=1e-6, high=10.0, meaning="share of the weights, at a rate of 1"),
                "rate_factor": Bounds(default=10.0, low=1e-3, high=1e4, meaning="rate over the planned one"),
            },
            step_cost=1.05,
            slots={"sgd": 1},
            excludes=_excluding("lars", ("lamb schedule-free", _OPTIMIZER), ("adascale", _INVARIANT)),
            optimizers=frozenset({"sgd"}),
        ),
    ),
    (
        "lamb",
        MitigationCard(
            summary="Adam whose update of each layer is a fixed share of its weights",
            source="You et al. 2020, arXiv 1904.00962",
            place="optimizer",
            entry="tula_core.mitigations.optimizers.layerwise:Lamb",
            effect=EFFECTS["lamb"],
            options={
                "clip": Bounds(default=0.0, low=0.0, high=1e3, meaning="largest norm of the whole gradient, 0 for any"),
                "rate_factor": Bounds(default=0.1, low=1e-4, high=1e4, meaning="rate over the planned one"),
            },
            step_cost=1.05,
            parameter_copies=1.0,
            slots={"sgd": 2, "adam": 2, "adamw": 2},
            excludes=_excluding("lamb", ("lars schedule-free", _OPTIMIZER), ("adascale", _INVARIANT)),
        ),
    ),
    (
        "schedule-free",
        MitigationCard(
            summary="an average of the iterates takes the place of the schedule",
            source="Defazio et al. 2024, arXiv 2405.15682",
            place="optimizer",
            entry="tula_core.mitigations.optimizers.schedule_free:ScheduleFree",
            effect=EFFECTS["schedule-free"],
            options={
                "rate_factor": Bounds(default=10.0, low=1e-3, high=1e3, meaning="rate over the planned one"),
                "warmup_share": Bounds(default=0.05, low=0.0, high=0.5, meaning="share of the run that warms up"),
            },
            parameter_copies=0.75,
            slots={"sgd": 1, "adam": 2, "adamw": 2},
            excludes=_excluding(
                "schedule-free",
                ("lars lamb sam", _OPTIMIZER),
                ("ema swa", _AVERAGE),
                ("adascale autowu warmup legw " + _GROWING, _CLOCK),
                ("post-local-sgd", "averages of the iterates on each process would drift apart"),
            ),
        ),
    ),
    (
        "sam",
        MitigationCard(
            summary="takes the gradient a little uphill, so that flat minima are found",
            source="Foret et al. 2021, arXiv 2010.01412",
            place="optimizer",
            entry="tula_core.mitigations.optimizers.sam:Sam",
            options={
                "rho": Bounds(default=0.05, low=0.0, high=10.0, meaning="length of the way uphill"),
                "adaptive": Bounds(default=0, low=0, high=1, meaning="1 scales the way by the weights"),
            },
            step_cost=2.0,
            parameter_copies=2.0,
        ),
    ),
    (
        "ghost-batch-norm",
        MitigationCard(
            summary="normalises groups of the local batch apart",
            source="Hoffer et al. 2017, arXiv 1705.08741",
            place="normalization",
            entry="tula_core.mitigations.normalization.ghost_batch_norm:GhostBatchNormMethod",
            options={"group": Bounds(default=32, low=2, high=65536, meaning="samples normalised together")},
            step_cost=1.3,
            needs_batch_norm=True,
        ),
    ),
    (
        "ema",
        MitigationCard(
            summary="evaluates an exponential mean of the weights",
            source="Izmailov et al. 2018, arXiv 1803.05407; Zhang et al. 2019, arXiv 1907.04164",
            place="averaging",
            entry="tula_core.mitigations.averaging.weights:Ema",
            options={"keep": Bounds(default=0.999, low=0.0, high=0.999999, meaning="kept after 256 samples")},
            step_cost=1.03,
            parameter_copies=1.0,
            excludes=_excluding("ema", ("swa schedule-free", _AVERAGE)),
        ),
    ),
    (
        "swa",
        MitigationCard(
            summary="evaluates the mean of the weights at the ends of the last epochs",
            source="Izmailov et al. 2018, arXiv 1803.05407",
            place="averaging",
            entry="tula_core.mitigations.averaging.weights:Swa",
            options={"begins": Bounds(default=0.75, low=0.0, high=0.99, meaning="share of the run after which")},
            parameter_copies=1.0,
            excludes=_excluding("swa", ("ema schedule-free", _AVERAGE)),
        ),
    ),
    (
        "post-local-sgd",
        MitigationCard(
            summary="late in the run processes step on their own, weights are averaged now and then",
            source="Lin et al. 2020, arXiv 1808.07217",
            place="averaging",
            entry="tula_core.mitigations.averaging.local_steps:PostLocalSgd",
            options={
                "begins": Bounds(default=0.5, low=0.0, high=0.99, meaning="share of the run after which"),
                "period": Bounds(default=8, low=1, high=1000, meaning="steps between averages"),
            },
            excludes=_excluding("post-local-sgd", ("adascale adaptive-batch", _LOCAL), (_GROWING, _BATCH)),
        ),
    ),
    (
        "rank-noise",
        MitigationCard(
            summary="micro-batches count by random weights, so that a step is as noisy as a smaller batch's",
            source="Tula's own; covariance after Wu et al. 2020, arXiv 1906.07405",
            place="noise",
            entry="tula_core.mitigations.noise.rank_weights:RankWeights",
            options={
                "small_batch": Bounds(default=0, low=0, high=1e9, meaning="whose noise is wanted, 0 for the recipe's"),
                "until": Bounds(default=0.7, low=0.0, high=1.0, meaning="share of the run after which none is added"),
            },
            excludes=_excluding("rank-noise", ("adascale adaptive-batch", "it measures the noise that this one adds")),
        ),
    ),
    *INPUTS,
)

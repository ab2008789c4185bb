"""The cards of the methods that change what a network is shown."""

from __future__ import annotations

from tula_core.mitigations.card import Bounds, MitigationCard, excluding

_MIXES = "it mixes or softens the labels that this method takes as class numbers"
_COPIES = "copies of an image are no samples of their own, and it measures the noise between samples"
_CLASSES = Bounds(default=0, low=0, high=1e6, meaning="number of classes; 0 is found from the data")

INPUTS: tuple[tuple[str, MitigationCard], ...] = (
    (
        "label-smoothing",
        MitigationCard(
            summary="labels are softened by a share spread over all classes",
            source="Szegedy et al. 2016, arXiv 1512.00567",
            place="inputs",
            entry="tula_core.mitigations.inputs.labels:LabelSmoothing",
            options={
                "share": Bounds(default=0.1, low=0.0, high=0.9, meaning="share that is spread"),
                "classes": _CLASSES,
            },
            needs_classes=True,
        ),
    ),
    (
        "mixup",
        MitigationCard(
            summary="trains on convex mixtures of images and labels",
            source="Zhang et al. 2018, arXiv 1710.09412",
            place="inputs",
            entry="tula_core.mitigations.inputs.labels:Mixup",
            options={"alpha": Bounds(default=0.2, low=0.001, high=10.0, meaning="of the mixture"), "classes": _CLASSES},
            excludes=excluding("mixup", ("cutmix conadv", _MIXES)),
            needs_classes=True,
            needs_images=True,
        ),
    ),
    (
        "cutmix",
        MitigationCard(
            summary="trains on patches of one image in another, labels by area",
            source="Yun et al. 2019, arXiv 1905.04899",
            place="inputs",
            entry="tula_core.mitigations.inputs.labels:Cutmix",
            options={"alpha": Bounds(default=1.0, low=0.001, high=10.0, meaning="of the areas"), "classes": _CLASSES},
            excludes=excluding("cutmix", ("mixup conadv", _MIXES)),
            needs_classes=True,
            needs_images=True,
        ),
    ),
    (
        "conadv",
        MitigationCard(
            summary="trains on adversaries made with slightly older weights as well",
            source="Liu et al. 2022, arXiv 2106.00221",
            place="inputs",
            entry="tula_core.mitigations.inputs.adversaries:ConAdv",
            options={"size": Bounds(default=0.03, low=0.0, high=10.0, meaning="largest change of a pixel")},
            step_cost=1.6,
            excludes=excluding("conadv", ("mixup cutmix label-smoothing", _MIXES)),
            needs_classes=True,
        ),
    ),
    (
        "batch-augmentation",
        MitigationCard(
            summary="each image counts several times in a step, cropped and mirrored anew",
            source="Hoffer et al. 2020, arXiv 1901.09335",
            place="inputs",
            entry="tula_core.mitigations.inputs.augmentation:BatchAugmentation",
            options={
                "copies": Bounds(default=2, low=1, high=64, meaning="times each image is passed in a step", whole=True),
                "shift": Bounds(default=0.125, low=0.0, high=0.5, meaning="share of a side that a crop may be off"),
                "mirror": Bounds(default=0, low=0, high=1, meaning="1 mirrors by chance; wrong for digits and letters"),
            },
            cost_option="copies",
            excludes=excluding("batch-augmentation", ("adascale adaptive-batch", _COPIES)),
            needs_images=True,
        ),
    ),
    (
        "progressive-resolution",
        MitigationCard(
            summary="the first part of the run, or of each of its cycles, sees smaller images",
            source="Tan and Le 2021, arXiv 2104.00298",
            place="inputs",
            entry="tula_core.mitigations.inputs.resolution:ProgressiveResolution",
            options={
                "smallest": Bounds(default=0.75, low=0.1, high=1.0, meaning="of the full side, at the start"),
                "full_from": Bounds(default=0.7, low=0.01, high=1.0, meaning="share of a cycle from which it is full"),
                "cycles": Bounds(
                    default=1, low=1, high=20, meaning="times in the run that sizes begin anew", whole=True
                ),
            },
            step_cost=0.9,
            needs_images=True,
        ),
    ),
)

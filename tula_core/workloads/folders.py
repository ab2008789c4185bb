"""Image folders by path, and torchvision's data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from tula_core.errors import InputError, nearest
from tula_core.workloads import download
from tula_core.workloads.sizing import part_of, permutation

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SMALL_IMAGE_PX = 96
EVAL_SHARE = 0.1

_TRAIN_FLAG = ({"train": True}, {"train": False})
_SPLIT_TEST = ({"split": "train"}, {"split": "test"})
_SPLIT_VAL = ({"split": "train"}, {"split": "val"})
TORCHVISION: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **dict.fromkeys(("CIFAR10", "CIFAR100", "FashionMNIST", "KMNIST", "MNIST", "QMNIST", "USPS"), _TRAIN_FLAG),
    **dict.fromkeys(
        ("DTD", "FER2013", "Flowers102", "Food101", "GTSRB", "PCAM", "RenderedSST2", "STL10", "SVHN"), _SPLIT_TEST
    ),
    **dict.fromkeys(("Imagenette",), _SPLIT_VAL),
    "Country211": ({"split": "train"}, {"split": "test"}),
    "FGVCAircraft": ({"split": "trainval"}, {"split": "test"}),
    "OxfordIIITPet": ({"split": "trainval"}, {"split": "test"}),
    "Caltech101": ({}, {}),
    "EuroSAT": ({}, {}),
}


def simplified(name: str) -> str:
    """Return a name in lower case without dashes and underscores, to compare with.

    >>> simplified("Fashion-MNIST")
    'fashionmnist'
    """
    return name.lower().replace("-", "").replace("_", "")


def image_transform(train: bool, native: bool) -> Callable[[Any], Any]:
    """Return PIL image to normalised tensor: of its own size, or 224 pixels cropped as ImageNet is."""
    from torchvision import transforms

    normalise = [transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    if native:
        sized = [transforms.RandomHorizontalFlip()] if train else []
    elif train:
        sized = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    else:
        sized = [transforms.Resize(256), transforms.CenterCrop(224)]
    made: Callable[[Any], Any] = transforms.Compose([transforms.Lambda(_to_colour), *sized, *normalise])
    return made


def imagenet(train: bool) -> Dataset[Any]:
    """Return ``TULA_DATA/imagenet`` with its subfolders ``train`` and ``val``, cropped to 224 pixels.

    Raises
    ------
    InputError
        The folder is not there, or its two parts have different classes.
    """
    folder = download.data_root() / "imagenet"
    if not ((folder / "train").is_dir() and (folder / "val").is_dir()):
        raise InputError(
            f"dataset: {folder} has no subfolders train and val. Put one folder of images per class in each, "
            "in the folder imagenet of the one that TULA_DATA names."
        )
    return _from_parts(folder / "train", folder / "val", train, native=False)


def image_folder(path: Path) -> tuple[Callable[[], Dataset[Any]], Callable[[], Dataset[Any]], tuple[str, ...]]:
    """Return openers of the training and evaluation set in a folder of images, and notes on what was assumed.

    The folder holds ``train`` and ``val`` (or ``test``), each with a folder per class; or it holds the classes itself,
    and then a tenth, the same each time, is kept for evaluation. Images of one size up to 96 pixels keep it, others
    are cropped to 224.

    Raises
    ------
    InputError
        There is no such folder.
    """
    if not path.is_dir():
        raise InputError(
            f"dataset: {str(path)!r} is not a folder. Give a folder with one subfolder of images per class."
        )
    evaluation = next((path / name for name in ("val", "test") if (path / name).is_dir()), None)
    if (path / "train").is_dir() and evaluation is not None:
        return (
            partial(_from_parts, path / "train", evaluation, True),
            partial(_from_parts, path / "train", evaluation, False),
            (),
        )
    note = f"{path} has no subfolders train and val: a tenth of its images, the same each time, is used to evaluate."
    return partial(_from_whole, path, True), partial(_from_whole, path, False), (note,)


def torchvision_dataset(
    name: str,
) -> tuple[Callable[[], Dataset[Any]], Callable[[], Dataset[Any]], tuple[str, ...]]:
    """Return openers of a torchvision classification data set by the name of its class, and notes.

    Its files are looked for in ``TULA_DATA`` as torchvision lays them out, and downloaded there where absent.

    Raises
    ------
    InputError
        torchvision has no such data set, or Tula does not know how it is split.
    """
    known = next((real for real in TORCHVISION if simplified(real) == simplified(name)), None)
    if known is None:
        raise InputError(f"dataset: {name!r} is unknown. {nearest(name, TORCHVISION)}")
    notes: tuple[str, ...] = ()
    if not TORCHVISION[known][0]:
        notes = (f"{known} has no split of its own: a tenth of it, the same each time, is used to evaluate.",)
    return partial(_from_torchvision, known, True), partial(_from_torchvision, known, False), notes


def split(dataset: Any, train: bool) -> Dataset[Any]:
    """Return nine tenths of a data set to train on or the last tenth to evaluate, the same each time."""
    count = len(dataset)
    order = permutation(count, 0, "split")
    held_out = max(1, round(count * EVAL_SHARE))
    return part_of(dataset, order[:-held_out] if train else order[-held_out:])


def _from_parts(train_folder: Path, eval_folder: Path, train: bool, native: bool | None = None) -> Dataset[Any]:
    opened, other = _open_folder(train_folder), _open_folder(eval_folder)
    if opened.classes != other.classes:
        odd = sorted(set(opened.classes) ^ set(other.classes))
        raise InputError(
            f"dataset: {train_folder} and {eval_folder} have different classes, for example {odd[0]!r}: their labels "
            "would not mean the same. Give both the same subfolders."
        )
    keeps_size = _is_native(opened) if native is None else native
    chosen = opened if train else other
    chosen.transform = image_transform(train, keeps_size)
    return chosen  # type: ignore[no-any-return]


def _from_whole(path: Path, train: bool) -> Dataset[Any]:
    opened = _open_folder(path)
    opened.transform = image_transform(train, _is_native(opened))
    return split(opened, train)


def _from_torchvision(name: str, train: bool) -> Dataset[Any]:
    import torchvision.datasets

    options = TORCHVISION[name][0 if train else 1]
    kind = getattr(torchvision.datasets, name)
    root = download.data_root()
    try:
        opened = kind(str(root), **options)
    except (RuntimeError, OSError):
        try:
            download.torchvision_download(name, root, options)
            opened = kind(str(root), **options)
        except (RuntimeError, OSError) as error:
            raise InputError(
                f"dataset: {name} is not in {root} and the download failed: {error}. Put its files there as "
                "torchvision lays them out (set TULA_DATA to choose the folder), or allow the download."
            ) from None
    return _Transformed(opened if options else split(opened, train), image_transform(train, _is_native(opened)))


class _Transformed(Dataset[Any]):
    """A data set of PIL images whose images are transformed when read."""

    def __init__(self, dataset: Any, transform: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self.transform = transform

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image, target = self.dataset[index]
        return self.transform(image), target

    def __getattr__(self, name: str) -> Any:
        if name not in ("classes", "targets"):
            raise AttributeError(name)
        return getattr(self.dataset, name)


def _open_folder(path: Path) -> Any:
    from torchvision.datasets import ImageFolder

    try:
        return ImageFolder(str(path))
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"dataset: {str(path)!r} is not a folder of images by class ({error}). "
            "Give a folder with one subfolder of images per class."
        ) from None


def _is_native(dataset: Any) -> bool:
    """Whether the images, by eight of them, are of one small size and can be batched as they are."""
    count = len(dataset)
    sizes = {dataset[index * (count - 1) // 7][0].size for index in range(8)}
    return len(sizes) == 1 and max(next(iter(sizes))) <= SMALL_IMAGE_PX


def _to_colour(image: Any) -> Any:
    return image if image.mode == "RGB" else image.convert("RGB")

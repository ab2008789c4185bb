"""The data sets a job can name, held in memory: digits, Fashion-MNIST and CIFAR-10."""

from __future__ import annotations

import gzip
import importlib.util
import pickle
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from tula_core.errors import InputError
from tula_core.registry import Registry
from tula_core.workloads import download
from tula_core.workloads.images import InMemoryImages
from tula_core.workloads.types import Entry

DatasetMaker = Callable[[bool], Dataset[Any]]

DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def digits(train: bool) -> InMemoryImages:
    """Return scikit-learn's digits, 8x8 grey images: four fifths of each class to train on, the rest to evaluate.

    Raises
    ------
    InputError
        scikit-learn, whose package holds the file, is not installed.

    >>> len(digits(True)), len(digits(False))
    (1438, 359)
    """
    table = _digits_table()
    targets = table[:, -1].astype(np.int64)
    held = np.concatenate([_fifth_of(np.flatnonzero(targets == digit), seed=digit) for digit in range(10)])
    chosen = np.isin(np.arange(len(table)), held, invert=train)
    return InMemoryImages(
        torch.from_numpy(table[chosen, :-1].astype(np.uint8).reshape(-1, 1, 8, 8)),
        torch.from_numpy(targets[chosen]),
        classes=[str(digit) for digit in range(10)],
        mean=[0.3053],
        std=[0.3760],
        scale=16.0,
    )


def _digits_table() -> NDArray[np.float64]:
    # Read from the package's folder: importing scikit-learn for one small file costs each worker two seconds.
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise InputError("dataset: digits needs scikit-learn, which is not installed. Run: pip install scikit-learn")
    path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return np.loadtxt(path, delimiter=",")


def _fifth_of(indices: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(indices)[: round(len(indices) / 5)]


def fashion_mnist(train: bool) -> InMemoryImages:
    """Return Fashion-MNIST from ``TULA_DATA``, from Debian's package or by a download to ``TULA_DATA``.

    Raises
    ------
    InputError
        None of the three has it, or a file is damaged.
    """
    prefix = "train" if train else "t10k"
    names = (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    root = download.data_root()
    downloaded = root / "FashionMNIST" / "raw"
    folders = (root, root / "fashion-mnist", downloaded, DEBIAN_FASHION)
    files = _first_pair(folders, names)
    if files is None:
        try:
            download.torchvision_download("FashionMNIST", root)
        except RuntimeError as error:
            raise InputError(_fashion_remedy(f"the download failed: {error}")) from None
        files = _first_pair((downloaded,), names)
        if files is None:
            raise InputError(_fashion_remedy("the download left no files"))
    images, targets = read_idx(files[0]), read_idx(files[1])
    if images.ndim != 3 or targets.ndim != 1 or len(images) != len(targets):
        raise InputError(
            f"dataset: {files[0]} and {files[1]} do not belong together, shapes {images.shape} and {targets.shape}. "
            "Get both files anew."
        )
    return InMemoryImages(
        torch.from_numpy(images).unsqueeze(1),
        torch.from_numpy(targets),
        classes=FASHION_CLASSES,
        mean=[0.2860],
        std=[0.3530],
    )


def cifar10(train: bool) -> InMemoryImages:
    """Return CIFAR-10 from ``TULA_DATA/cifar-10-batches-py``, downloaded where absent; the training set is augmented.

    Raises
    ------
    InputError
        It is neither there nor to be downloaded, or a file is damaged.
    """
    root = download.data_root()
    folder = root / "cifar-10-batches-py"
    names = [f"data_batch_{number}" for number in range(1, 6)] if train else ["test_batch"]
    if not all((folder / name).is_file() for name in names):
        try:
            download.torchvision_download("CIFAR10", root)
        except RuntimeError as error:
            raise InputError(
                f"dataset: CIFAR-10 is not in {folder} and the download failed: {error}. Unpack cifar-10-python.tar.gz "
                "(https://www.cs.toronto.edu/~kriz/cifar.html) in the folder TULA_DATA names, or allow the download."
            ) from None
    batches = [_cifar_batch(folder / name) for name in names]
    return InMemoryImages(
        torch.from_numpy(np.concatenate([images for images, _ in batches])),
        torch.from_numpy(np.concatenate([targets for _, targets in batches])),
        classes=CIFAR10_CLASSES,
        mean=[0.4914, 0.4822, 0.4465],
        std=[0.2470, 0.2435, 0.2616],
        augment=train,
    )


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array in an IDX file of unsigned bytes, compressed or not.

    Raises
    ------
    InputError
        The file is no such file, or damaged.
    """
    try:
        content = path.read_bytes()
        raw = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"dataset: {path} cannot be read ({error}). Get the file anew.") from None
    axes = raw[3] if raw[:3] == b"\0\0\x08" and len(raw) > 3 else 0
    shape = (
        tuple(int(n) for n in np.frombuffer(raw, dtype=">u4", count=axes, offset=4)) if len(raw) >= 4 + 4 * axes else ()
    )
    values = np.frombuffer(raw, dtype=np.uint8, offset=min(4 + 4 * axes, len(raw)))
    if not shape or int(np.prod(shape)) != len(values):
        raise InputError(f"dataset: {path} is not a whole IDX file of unsigned bytes. Get the file anew.")
    return values.reshape(shape).copy()


def _first_pair(folders: Iterable[Path], names: tuple[str, str]) -> tuple[Path, Path] | None:
    for folder in folders:
        for suffix in (".gz", ""):
            files = (folder / f"{names[0]}{suffix}", folder / f"{names[1]}{suffix}")
            if all(file.is_file() for file in files):
                return files
    return None


def _fashion_remedy(cause: str) -> str:
    return (
        f"dataset: Fashion-MNIST was not found and {cause}. Three ways to get it: put the four *-ubyte.gz files in the "
        "folder that TULA_DATA names; or install the Debian package dataset-fashion-mnist "
        "(apt install dataset-fashion-mnist); or allow the download."
    )


def _cifar_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="latin1").load()
        images = np.asarray(content["data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        targets = np.asarray(content["labels"], dtype=np.int64)
    except (OSError, EOFError, KeyError, TypeError, ValueError, pickle.UnpicklingError) as error:
        raise InputError(f"dataset: {path} cannot be read ({error}). Get the file anew.") from None
    if len(images) != len(targets):
        raise InputError(f"dataset: {path} has {len(images)} images and {len(targets)} labels. Get the file anew.")
    return images, targets


class _ArraysOnly(pickle.Unpickler):
    """Reads the published batches, which hold numpy arrays; a file that asks for anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the few functions numpy arrays need."""
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.zeros(0).__reduce__()[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


DATASETS: Registry[Entry[DatasetMaker]] = Registry(
    "dataset",
    ("digits", Entry(description="scikit-learn's digits, 1,797 grey images of 8x8", make=digits)),
    ("fashion-mnist", Entry(description="Fashion-MNIST, 70,000 grey images of 28x28", make=fashion_mnist)),
    ("cifar10", Entry(description="CIFAR-10, 60,000 colour images of 32x32", make=cifar10)),
)

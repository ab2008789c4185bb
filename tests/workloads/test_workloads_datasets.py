import gzip
import pickle

import numpy as np
import pytest
import torch

from tula_core.errors import InputError
from tula_core.workloads import DATASETS, InMemoryImages, datasets, download


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TULA_DATA", str(tmp_path))
    monkeypatch.setattr(datasets, "DEBIAN_FASHION", tmp_path / "no-debian")
    return tmp_path


def idx_bytes(array):
    header = b"\0\0\x08" + bytes([array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_fashion(folder, count=6, compress=True):
    folder.mkdir(parents=True, exist_ok=True)
    images = np.arange(count * 784, dtype=np.uint64).reshape(count, 28, 28) % 251
    for prefix in ("train", "t10k"):
        for name, array in (("images-idx3", images), ("labels-idx1", np.arange(count) % 10)):
            raw = idx_bytes(array)
            path = folder / f"{prefix}-{name}-ubyte{'.gz' if compress else ''}"
            path.write_bytes(gzip.compress(raw) if compress else raw)
    return images


def refuse_download(monkeypatch, asked):
    def refuse(name, root, options=None):
        asked.append(name)
        raise RuntimeError("no way out")

    monkeypatch.setattr(download, "torchvision_download", refuse)


def test_digits_are_split_by_class_the_same_each_time():
    train, evaluation = DATASETS["digits"].make(True), DATASETS["digits"].make(False)
    assert len(train) + len(evaluation) == 1797
    shares = torch.bincount(evaluation.targets) / (torch.bincount(train.targets) + torch.bincount(evaluation.targets))
    assert torch.allclose(shares, torch.full((10,), 0.2), atol=0.01)
    assert torch.equal(train.images, DATASETS["digits"].make(True).images)
    images, _ = train.get_batch(range(len(train)))
    assert abs(float(images.mean())) < 0.05
    assert abs(float(images.std()) - 1) < 0.05


def test_a_batch_holds_what_the_items_hold():
    data = DATASETS["digits"].make(False)
    images, targets = data.get_batch([4, 1, 4])
    assert images.dtype == torch.float32
    assert targets.dtype == torch.int64
    for row, index in enumerate([4, 1, 4]):
        assert torch.equal(images[row], data[index][0])
        assert int(targets[row]) == data[index][1]


def test_augmentation_moves_and_mirrors_but_never_mixes_images():
    marks = torch.arange(1, 9, dtype=torch.uint8).view(8, 1, 1, 1).expand(8, 3, 6, 6)
    plain = {"classes": ["a"], "mean": [0.0] * 3, "std": [1.0] * 3, "scale": 1.0}
    data = InMemoryImages(marks, torch.zeros(8), augment=True, **plain)
    torch.manual_seed(1)
    images, _ = data.get_batch(range(8))
    assert images.shape == (8, 3, 6, 6)
    for index in range(8):
        assert set(images[index].unique().tolist()) <= {0.0, index + 1.0}
    torch.manual_seed(1)
    assert torch.equal(images, data.get_batch(range(8))[0])
    assert not torch.equal(images, data.get_batch(range(8))[0])


def test_an_augmented_image_is_a_window_of_its_padded_self_or_the_mirror_of_one():
    image = torch.randint(1, 255, (1, 3, 5, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    plain = {"classes": ["a"], "mean": [0.0] * 3, "std": [1.0] * 3, "scale": 1.0}
    data = InMemoryImages(image, torch.zeros(1), augment=True, **plain)
    padded = torch.nn.functional.pad(image.float(), (4, 4, 4, 4))[0]
    windows = [padded[:, y : y + 5, x : x + 5] for y in range(9) for x in range(9)]
    windows += [window.flip(2) for window in windows]
    torch.manual_seed(0)
    for _ in range(20):
        found = data.get_batch([0])[0][0]
        assert any(torch.equal(found, window) for window in windows)


@pytest.mark.parametrize("place", ["", "fashion-mnist", "FashionMNIST/raw"])
@pytest.mark.parametrize("compress", [True, False])
def test_fashion_is_found_in_each_folder(data_folder, place, compress, monkeypatch):
    asked = []
    refuse_download(monkeypatch, asked)
    images = write_fashion(data_folder / place, compress=compress)
    data = DATASETS["fashion-mnist"].make(True)
    assert torch.equal(data.images[:, 0].long(), torch.from_numpy(images.astype(np.int64)))
    assert data.targets.tolist() == [0, 1, 2, 3, 4, 5]
    assert asked == []


def test_fashion_comes_from_the_debian_package_before_a_download(data_folder, monkeypatch):
    asked = []
    refuse_download(monkeypatch, asked)
    write_fashion(data_folder / "debian")
    monkeypatch.setattr(datasets, "DEBIAN_FASHION", data_folder / "debian")
    assert len(DATASETS["fashion-mnist"].make(False)) == 6
    assert asked == []


def test_fashion_that_is_nowhere_lists_the_three_ways(data_folder, monkeypatch):
    asked = []
    refuse_download(monkeypatch, asked)
    with pytest.raises(InputError, match="no way out.*TULA_DATA.*dataset-fashion-mnist.*allow the download"):
        DATASETS["fashion-mnist"].make(True)
    assert asked == ["FashionMNIST"]


def test_a_download_without_a_way_out_ends_in_a_reason(data_folder, monkeypatch):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(RuntimeError, match="refused|Error|error"):
        download.torchvision_download("FashionMNIST", data_folder)


def test_a_download_that_hangs_is_stopped(data_folder, monkeypatch):
    monkeypatch.setattr(download, "_FETCH", "import time; time.sleep(60)")
    monkeypatch.setattr(download, "DOWNLOAD_LIMIT_S", 0.5)
    with pytest.raises(RuntimeError, match="stopped after"):
        download.torchvision_download("FashionMNIST", data_folder)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8bnonsense", gzip.compress(idx_bytes(np.zeros((2, 3, 3))))[:-12]])
def test_a_damaged_file_is_named(data_folder, content):
    write_fashion(data_folder)
    (data_folder / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte.gz .*Get the file anew"):
        DATASETS["fashion-mnist"].make(True)


def test_a_short_idx_file_is_refused(tmp_path):
    (tmp_path / "short").write_bytes(idx_bytes(np.zeros((4, 2)))[:-1])
    with pytest.raises(InputError, match="not a whole IDX file"):
        datasets.read_idx(tmp_path / "short")


def test_images_and_labels_that_do_not_match_are_refused(data_folder):
    write_fashion(data_folder)
    (data_folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(np.arange(5))))
    with pytest.raises(InputError, match="do not belong together"):
        DATASETS["fashion-mnist"].make(True)


def test_data_folder_that_is_no_folder_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("TULA_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="TULA_DATA: .*nowhere' is not a folder"):
        DATASETS["cifar10"].make(True)


def write_cifar(folder, content=None):
    folder.mkdir()
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        rows = np.full((3, 3072), number, dtype=np.uint8)
        rows[:, 1024:2048] = 100
        found = {"data": rows, "labels": [0, 1, number]} if content is None else content
        (folder / name).write_bytes(pickle.dumps(found))


def test_cifar_is_read_from_its_batches(data_folder):
    write_cifar(data_folder / "cifar-10-batches-py")
    train, evaluation = DATASETS["cifar10"].make(True), DATASETS["cifar10"].make(False)
    assert (len(train), len(evaluation)) == (15, 3)
    assert train.augment
    assert not evaluation.augment
    assert evaluation.images[0, :, 0, 0].tolist() == [5, 100, 5]
    assert evaluation.targets.tolist() == [0, 1, 5]


class Shout:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize("content", [{"labels": [1]}, Shout(), 3])
def test_a_cifar_file_with_something_else_in_it_is_refused_and_not_run(data_folder, content, capsys):
    write_cifar(data_folder / "cifar-10-batches-py", content)
    with pytest.raises(InputError, match="test_batch cannot be read"):
        DATASETS["cifar10"].make(False)
    assert capsys.readouterr().out == ""


def test_cifar_that_is_nowhere_says_where_to_put_it(data_folder, monkeypatch):
    refuse_download(monkeypatch, [])
    with pytest.raises(InputError, match="cifar-10-python.tar.gz"):
        DATASETS["cifar10"].make(True)

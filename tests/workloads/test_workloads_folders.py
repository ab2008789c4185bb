import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from tula_core.errors import InputError
from tula_core.job import Job
from tula_core.workloads import describe, download, load_workload, validate


def write_images(folder, classes=("cat", "dog"), count=6, size=(40, 40), mode="RGB"):
    generator = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = generator.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
            Image.fromarray(pixels).convert(mode).save(folder / name / f"{index}.png")


def test_imagenet_recipe_on_a_small_generated_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TULA_DATA", str(tmp_path))
    write_images(tmp_path / "imagenet" / "train", size=(90, 70))
    write_images(tmp_path / "imagenet" / "val", size=(70, 90))
    job = Job.builtin("imagenet-resnet50")
    workload = load_workload(job)
    validate(workload)
    facts = describe(workload, job)
    assert facts.sample_shape == (3, 224, 224)
    assert (facts.train_samples, facts.eval_samples) == (12, 12)
    assert facts.parameters == 25_557_032
    assert (workload.recipe.precision, workload.recipe.channels_last, workload.recipe.loader_workers) == (
        "bf16",
        True,
        4,
    )
    images, targets = next(iter(DataLoader(workload.train_set(), batch_size=4, num_workers=1)))
    assert images.shape == (4, 3, 224, 224)
    assert targets.tolist() == [0, 0, 0, 0]


def test_imagenet_that_is_nowhere_says_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TULA_DATA", str(tmp_path))
    with pytest.raises(InputError, match="imagenet has no subfolders train and val"):
        load_workload(Job(workload="imagenet-resnet50")).train_set()


@pytest.mark.parametrize("evaluation", ["val", "test"])
def test_a_folder_with_parts_keeps_small_images_as_they_are(tmp_path, evaluation):
    write_images(tmp_path / "train")
    write_images(tmp_path / evaluation, count=3)
    workload = load_workload(Job(network="small-cnn", dataset=str(tmp_path)))
    validate(workload)
    assert workload.notes == ()
    assert (len(workload.train_set()), len(workload.eval_set())) == (12, 6)
    assert workload.train_set()[0][0].shape == (3, 40, 40)
    assert workload.network()[-1].out_features == 2


def test_a_folder_without_parts_is_split_and_it_is_said(tmp_path):
    write_images(tmp_path, classes=("a", "b", "c"), count=10, mode="L")
    workload = load_workload(Job(network="small-cnn", dataset=str(tmp_path)))
    validate(workload)
    assert "a tenth of its images" in workload.notes[0]
    again = load_workload(Job(network="small-cnn", dataset=str(tmp_path), seed=5))
    train, evaluation = workload.train_set(), workload.eval_set()
    assert evaluation.indices == again.eval_set().indices
    assert sorted(train.indices + evaluation.indices) == list(range(30))
    assert len(evaluation) == 3
    assert torch.equal(evaluation[0][0], evaluation[0][0])


def test_images_of_many_sizes_are_cropped(tmp_path):
    write_images(tmp_path / "train", size=(50, 40))
    Image.new("RGB", (30, 60)).save(tmp_path / "train" / "cat" / "0.png")
    write_images(tmp_path / "val")
    workload = load_workload(Job(network="small-cnn", dataset=str(tmp_path)))
    assert workload.train_set()[0][0].shape == (3, 224, 224)
    assert workload.eval_set()[0][0].shape == (3, 224, 224)
    job = Job(network="small-cnn", dataset=str(tmp_path))
    assert describe(workload, job).code_fingerprint == describe(load_workload(job), job).code_fingerprint


def test_parts_with_different_classes_are_refused(tmp_path):
    write_images(tmp_path / "train")
    write_images(tmp_path / "val", classes=("cat", "eel"))
    with pytest.raises(InputError, match="different classes, for example 'dog'"):
        load_workload(Job(network="small-cnn", dataset=str(tmp_path))).train_set()


def test_a_folder_without_images_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="not a folder of images by class"):
        load_workload(Job(network="small-cnn", dataset=str(tmp_path))).train_set()


def write_mnist(folder, count=20):
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix in ("train", "t10k"):
        for name, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            header = b"\0\0\x08" + bytes([len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
            values = np.arange(np.prod(shape)) % 10
            (raw / f"{prefix}-{name}-ubyte").write_bytes(header + values.astype(np.uint8).tobytes())


def test_a_torchvision_data_set_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("TULA_DATA", str(tmp_path))
    write_mnist(tmp_path)
    job = Job(network="small-cnn", dataset="mnist", samples=10)
    workload = load_workload(job)
    validate(workload)
    facts = describe(workload, job)
    assert (facts.sample_shape, facts.train_samples, facts.eval_samples) == ((3, 28, 28), 10, 20)
    assert workload.network()[-1].out_features == 10


def test_a_torchvision_data_set_that_is_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("TULA_DATA", str(tmp_path))
    asked = []

    def refuse(name, root, options):
        asked.append((name, options))
        raise RuntimeError("no way out")

    monkeypatch.setattr(download, "torchvision_download", refuse)
    with pytest.raises(InputError, match="SVHN is not in .* and the download failed: no way out"):
        load_workload(Job(network="small-cnn", dataset="SVHN")).train_set()
    assert asked == [("SVHN", {"split": "train"})]

import pytest
import torch

from tula_core.errors import InputError
from tula_core.workloads import LOSSES, METRICS
from tula_core.workloads.types import Metric


@pytest.mark.parametrize("name", ["accuracy", "top5_accuracy"])
def test_class_metrics_add_up_over_uneven_shards(name):
    torch.manual_seed(0)
    output, target = torch.randn(101, 10), torch.randint(0, 10, (101,))
    whole = METRICS[name].compute(output, target)
    parts = [METRICS[name].compute(o, t) for o, t in zip(output.split(7), target.split(7), strict=True)]
    assert (sum(total for total, _ in parts), sum(count for _, count in parts)) == whole
    assert whole[1] == 101


@pytest.mark.parametrize("name", ["mse", "mae"])
def test_error_metrics_add_up_over_uneven_shards(name):
    output, target = torch.randn(11, 3), torch.randn(11, 3)
    total, count = METRICS[name].compute(output, target)
    parts = [METRICS[name].compute(o, t)[0] for o, t in zip(output.split(4), target.split(4), strict=True)]
    assert sum(parts) == pytest.approx(total)
    assert count == 33
    assert not METRICS[name].higher_is_better


def test_accuracy_counts_right_answers():
    output = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 3.0], [1.0, 5.0, 0.0]])
    assert METRICS["accuracy"].compute(output, torch.tensor([0, 2, 0])) == (2.0, 3)
    assert METRICS["top5_accuracy"].compute(output, torch.tensor([0, 2, 0])) == (3.0, 3)


def test_accuracy_of_a_single_logit_is_not_an_argmax_over_one_class():
    assert METRICS["accuracy"].compute(torch.tensor([[3.0], [-3.0]]), torch.tensor([1, 1])) == (1.0, 2)
    assert METRICS["accuracy"].compute(torch.tensor([[3.0], [-3.0]]), torch.tensor([1.0, 0.0])) == (2.0, 2)


def test_accuracy_of_every_pixel():
    output, target = torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.long)
    output[:, 0] = 1
    assert METRICS["accuracy"].compute(output, target) == (32.0, 32)


@pytest.mark.parametrize("target", [torch.rand(4, 3), torch.zeros(4, 1, dtype=torch.long)])
def test_accuracy_refuses_targets_that_would_broadcast(target):
    with pytest.raises(ValueError, match="needs class numbers of shape"):
        METRICS["accuracy"].compute(torch.randn(4, 3), target)


@pytest.mark.parametrize("loss", ["mse", "bce_with_logits"])
def test_losses_align_a_column_and_refuse_a_broadcast(loss):
    column, flat = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1.0, 0.0, 1.0])
    assert torch.equal(LOSSES[loss](column, flat), LOSSES[loss](column.flatten(), flat))
    with pytest.raises(ValueError, match="must agree"):
        LOSSES[loss](torch.randn(3, 3), flat)


def test_names_agree_with_the_registry_and_unknown_ones_list_the_known():
    assert all(isinstance(metric, Metric) and metric.name == name for name, metric in METRICS.items())
    with pytest.raises(InputError, match="Did you mean 'accuracy'"):
        METRICS["acuracy"]


def test_pixels_without_a_label_count_neither_in_the_loss_nor_in_the_accuracy():
    output, target = torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.long)
    output[:, 0] = 1
    target[:, :2] = 255
    target[0, 2, 0] = 2
    assert METRICS["pixel_accuracy"].compute(output, target) == (15.0, 16)
    labelled = target != 255
    flat = torch.nn.functional.cross_entropy(output.movedim(1, -1)[labelled], target[labelled])
    assert float(LOSSES["pixel_cross_entropy"](output, target)) == pytest.approx(float(flat))
    assert METRICS["accuracy"].compute(output, target)[1] == 32  # it counts every pixel

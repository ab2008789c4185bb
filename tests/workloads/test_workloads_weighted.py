import functools
from dataclasses import replace

import pytest
import tiny_workloads
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from tula_core.workloads import LOSSES, WeightedLoss
from tula_core.workloads.weighted import as_weighted, is_mean_of_samples, loss_of_steps

IGNORED = 255
CLASSES = torch.tensor([0.2, 1.0, 3.0])


def outputs_and_labels(ignored=0.4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    output = torch.randn(6, 3, 4, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (6, 4, 5), generator=generator)
    return output, labels.masked_fill(torch.rand(6, 4, 5, generator=generator) < ignored, IGNORED)


LABEL_LOSSES = {
    "ignored": nn.CrossEntropyLoss(ignore_index=IGNORED),
    "class weights": nn.CrossEntropyLoss(ignore_index=IGNORED, weight=CLASSES.double()),
    "smoothed": nn.CrossEntropyLoss(ignore_index=IGNORED, weight=CLASSES.double(), label_smoothing=0.1),
    "function with arguments": functools.partial(F.cross_entropy, ignore_index=IGNORED),
    "log likelihood": nn.NLLLoss(ignore_index=IGNORED),
}


@pytest.mark.parametrize("name", LABEL_LOSSES)
def test_sum_and_weight_add_up_over_any_split_to_what_torch_gives(name):
    loss = LABEL_LOSSES[name]
    weighted = as_weighted(loss)
    output, labels = outputs_and_labels()
    assert float(weighted(output, labels)) == pytest.approx(float(loss(output, labels)), rel=1e-12)
    parts = [(output[i:j], labels[i:j]) for i, j in ((0, 1), (1, 4), (4, 6))]
    total, weight = sum(weighted.total(*p) for p in parts), sum(weighted.weight(p[1]) for p in parts)
    assert float(total / weight) == pytest.approx(float(loss(output, labels)), rel=1e-12)


def test_a_batch_without_a_label_counts_nothing_instead_of_giving_nan():
    weighted = as_weighted(nn.CrossEntropyLoss(ignore_index=IGNORED))
    output, labels = outputs_and_labels(ignored=1.0)
    output.requires_grad_()
    loss = weighted(output, labels)
    loss.backward()
    assert float(loss.detach()) == 0
    assert float(output.grad.abs().max()) == 0


def test_targets_given_as_shares_of_classes_weigh_one_each():
    output, _ = outputs_and_labels()
    shares = torch.softmax(torch.randn(output.shape, dtype=torch.float64), dim=1)
    loss = nn.CrossEntropyLoss(weight=CLASSES.double())
    assert float(as_weighted(loss)(output, shares)) == pytest.approx(float(loss(output, shares)), rel=1e-12)


@pytest.mark.parametrize("loss", [nn.MSELoss(), LOSSES["cross_entropy"], nn.CrossEntropyLoss(reduction="sum")])
def test_other_losses_are_taken_as_they_are(loss):
    assert as_weighted(loss) is None


def test_a_loss_of_ones_own_is_taken_as_given():
    loss = WeightedLoss(total=lambda output, target: output.sum(), weight=lambda target: target.sum())
    assert as_weighted(loss) is loss


def test_a_subclass_with_a_forward_pass_of_its_own_is_not_taken_for_torchs():
    class Doubled(nn.CrossEntropyLoss):
        def forward(self, output, target):
            return 2 * super().forward(output, target)

    assert as_weighted(Doubled()) is None


def test_the_named_loss_leaves_no_label_out_in_silence():
    with pytest.raises(IndexError, match="-100"):
        LOSSES["cross_entropy"](torch.zeros(2, 3), torch.tensor([1, -100]))


@pytest.mark.parametrize(
    ("loss", "labels", "counts"),
    [
        (F.cross_entropy, [0, 1, 2, 1], False),
        (F.cross_entropy, [0, 1, -100, 1], True),
        (nn.CrossEntropyLoss(ignore_index=2), [0, 1, 2, 1], True),
        (nn.CrossEntropyLoss(weight=CLASSES), [0, 1, 2, 1], True),
        (LOSSES["cross_entropy"], [0, 1, 2, 1], False),
    ],
)
def test_weights_are_counted_only_where_they_can_matter(loss, labels, counts):
    data = TensorDataset(torch.randn(4, 6), torch.tensor(labels))
    workload = replace(tiny_workloads.plain(), train_data=data, loss=loss)
    assert (loss_of_steps(workload) is not None) is counts


def test_a_loss_that_mixes_the_samples_of_a_batch_is_seen():
    output, target = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 1])
    assert is_mean_of_samples(F.cross_entropy, output, target)
    assert not is_mean_of_samples(lambda o, t: (o @ o.T).softmax(1).diagonal().log().mean(), output, target)
    assert is_mean_of_samples(lambda o, t: o[3, 0], output, target)  # it fails on one sample: nothing is said

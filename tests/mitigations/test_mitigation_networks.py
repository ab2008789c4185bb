"""Methods that change what a network is, sees or keeps: oracles on plain torch, without the loop."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tula_core.job import Recipe
from tula_core.mitigations.averaging.weights import Ema, Swa, decay
from tula_core.mitigations.inputs.adversaries import ConAdv, adversary
from tula_core.mitigations.inputs.labels import Cutmix, LabelSmoothing, Mixup, smoothed
from tula_core.mitigations.inputs.resolution import ProgressiveResolution, side, within_cycle
from tula_core.mitigations.method import Setting
from tula_core.mitigations.normalization.ghost_batch_norm import (
    GhostBatchNorm,
    group_sizes,
    running_after,
    with_ghost_groups,
)
from tula_core.mitigations.normalization.statistics import estimate_statistics
from tula_core.mitigations.optimizers.layerwise import Lamb, Lars, parameter_groups
from tula_core.mitigations.optimizers.sam import Sam
from tula_core.mitigations.optimizers.schedule_free import ScheduleFree

RECIPE = Recipe(optimizer="sgd", learning_rate=0.1, batch_size=32, epochs=2, momentum=0.9, weight_decay=1e-2)


def setting(**options: float) -> Setting:
    return Setting(
        recipe=RECIPE,
        processes=1,
        rank=0,
        local_batch=64,
        accumulation=1,
        train_samples=640,
        total_samples=1280,
        seed=0,
        options=options,
    )


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))


def images(count: int = 16) -> torch.Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("samples", "group"), [(101, 10), (7, 32), (2, 2), (64, 32), (65, 64), (1, 2), (127, 2)])
def test_groups_are_balanced_and_none_has_a_single_sample(samples: int, group: int) -> None:
    """Naive chunking leaves a group of one, whose variance is nothing."""
    sizes = group_sizes(samples, group)
    assert sum(sizes) == samples and max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(group, samples)


@pytest.mark.parametrize("shape", [(16, 4), (16, 4, 5), (17, 4, 3, 3)])
def test_ghost_groups_are_what_batch_norm_gives_to_each_chunk(shape: tuple[int, ...]) -> None:
    kinds: dict[int, type[Any]] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}
    plain = kinds[len(shape)](4).double()
    nn.init.normal_(plain.weight)
    nn.init.normal_(plain.bias)
    ghost = GhostBatchNorm(copy.deepcopy(plain), 5)
    inputs = torch.randn(shape, dtype=torch.float64)
    found = ghost(inputs)
    wanted = torch.cat([plain(part) for part in inputs.split(group_sizes(len(inputs), 5))])
    assert torch.allclose(found, wanted, atol=1e-6)
    assert torch.allclose(ghost.running_mean, plain.running_mean, atol=1e-6)
    assert torch.allclose(ghost.running_var, plain.running_var, atol=1e-6)
    plain.eval()
    ghost.eval()
    assert torch.allclose(ghost(inputs), plain(inputs), atol=1e-6)


def test_the_closed_form_of_the_running_statistic_is_the_loop() -> None:
    running, groups = torch.rand(3, dtype=torch.float64), torch.rand(6, 3, dtype=torch.float64)
    looped = running.clone()
    for group in groups:
        looped = 0.9 * looped + 0.1 * group
    assert torch.allclose(running_after(running, groups, 0.1), looped, atol=1e-15)


def test_a_network_with_ghost_groups_has_the_same_parameters_and_checkpoint() -> None:
    plain = network()
    ghost = with_ghost_groups(copy.deepcopy(plain), 4)
    assert isinstance(ghost[1], GhostBatchNorm)
    assert list(ghost.state_dict()) == list(plain.state_dict())
    ghost.load_state_dict(plain.state_dict())
    whole = with_ghost_groups(copy.deepcopy(plain), 10_000)
    assert torch.allclose(whole(images()), plain(images()), atol=1e-6)


def batches() -> Iterator[tuple[Any, Any]]:
    return iter([(images(), None)])


def test_the_mean_of_snapshots_is_evaluated_and_the_network_comes_back() -> None:
    """Statistics of the last weights would be used for the averaged ones, and score badly."""
    net, method, snapshots = network(), Swa(setting(begins=0.0)), []
    for epoch in range(1, 4):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(0.1 * epoch)
        snapshots.append([parameter.detach().clone() for parameter in net.parameters()])
        method.after_step(net, 640, 640 * epoch)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with method.evaluating(net, batches):
        for parameter, *parts in zip(net.parameters(), *snapshots, strict=True):
            assert torch.allclose(parameter, torch.stack(parts).mean(dim=0), atol=1e-6)
        norm = net[1]
        assert isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None
        assert torch.allclose(norm.running_mean, net[0](images()).mean(dim=(0, 2, 3)), atol=1e-5)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_an_exponential_mean_forgets_by_samples_and_constant_weights_stay() -> None:
    net, method = network(), Ema(setting(keep=0.99))
    for step in range(1, 30):
        method.after_step(net, 64, 64 * step)
    kept = [parameter.detach().clone() for parameter in net.parameters()]
    with method.evaluating(net, batches):
        assert all(torch.allclose(now, old, atol=1e-6) for now, old in zip(net.parameters(), kept, strict=True))
    assert decay(0.99, 512) == pytest.approx(decay(0.99, 256) ** 2)


def test_nothing_kept_is_the_present_weights() -> None:
    net, method = network(), Ema(setting(keep=0.0))
    for step in range(1, 4):
        with torch.no_grad():
            net[0].weight.add_(1.0)
        method.after_step(net, 64, 64 * step)
    now = net[0].weight.detach().clone()
    with method.evaluating(net, batches):
        assert torch.allclose(net[0].weight, now)


def test_an_average_is_taken_up_from_its_state() -> None:
    net, method, other = network(), Ema(setting(keep=0.9)), Ema(setting(keep=0.9))
    method.after_step(net, 64, 64)
    with torch.no_grad():
        net[0].weight.add_(1.0)
    method.after_step(net, 64, 128)
    other.restore(method.state())
    net_weight = net[0].weight.detach().clone()
    with method.evaluating(net, batches):
        wanted = net[0].weight.detach().clone()
    with other.evaluating(net, batches):
        assert torch.equal(net[0].weight, wanted) and not torch.equal(wanted, net_weight)


def test_statistics_are_estimated_without_touching_a_flag() -> None:
    net = network()
    net[2].eval()
    estimate_statistics(net, batches)
    assert [module.training for module in net] == [True, True, False, *[True] * (len(net) - 3)]
    norm = net[1]
    assert isinstance(norm, nn.BatchNorm2d) and norm.momentum == 0.1 and float(norm.running_mean.abs().sum()) > 0


@pytest.mark.parametrize("kind", [Ema, Swa, ScheduleFree])
def test_statistics_that_are_frozen_in_training_stay_what_they_are(kind: type[Any]) -> None:
    """Elsewhere every layer is reset, so a fine-tuned network is scored with statistics that it never trained on."""
    net, method = network(), kind(setting(keep=0.0, begins=0.0))
    optimizer = method.optimizer(net, Recipe())
    norm = net[1]
    assert isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None
    norm.running_mean.fill_(3.0)
    norm.eval()
    functional.mse_loss(net(images()), torch.zeros(16, 5)).backward()
    if optimizer is not None:
        optimizer.step()
    method.after_step(net, 640, 640)
    with method.evaluating(net, batches):
        assert bool((norm.running_mean == 3.0).all()) and not norm.training


def test_smoothed_labels_have_the_published_optimum() -> None:
    """The best logits lie log((1 - e + e/C)/(e/C)) apart, where the loss is the entropy of the labels."""
    labels = smoothed(torch.tensor([2]), 5, 0.1).double()
    logits = labels.log()
    assert float(logits[0, 2] - logits[0, 0]) == pytest.approx(math.log((0.9 + 0.02) / 0.02))
    entropy = float(-(labels * labels.log()).sum())
    assert float(functional.cross_entropy(logits, labels)) == pytest.approx(entropy)
    assert torch.equal(smoothed(torch.tensor([2]), 5, 0.0), functional.one_hot(torch.tensor([2]), 5).float())
    _, hard = LabelSmoothing(setting(share=0.1, classes=5)).prepare(images(2), torch.tensor([0, 4]), 0)
    assert hard.sum(dim=1) == pytest.approx(torch.ones(2))


@pytest.mark.parametrize("kind", [Mixup, Cutmix])
def test_mixtures_keep_the_mass_of_the_labels_and_are_drawn_from_the_seed(kind: type[Mixup]) -> None:
    method, targets = kind(setting(alpha=1.0, classes=5)), torch.arange(16) % 5
    first, labels = method.prepare(images(), targets, seed=3)
    state = torch.random.get_rng_state()
    again, _ = method.prepare(images(), targets, seed=3)
    assert torch.equal(first, again) and torch.equal(state, torch.random.get_rng_state())
    assert labels.sum(dim=1) == pytest.approx(torch.ones(16), abs=1e-5)
    single, same = method.prepare(images(1), targets[:1], seed=3)
    assert torch.equal(single, images(1)) and torch.equal(same, targets[:1])


def test_images_grow_to_their_full_size() -> None:
    sides = [side(32, fraction / 20, 0.5, 0.8, 4) for fraction in range(21)]
    assert sides[0] == 16 and sides[-5:] == [32] * 5 and sides == sorted(sides)
    method = ProgressiveResolution(setting(smallest=0.5, full_from=0.5, cycles=1))
    assert method.rate(0.1, 0) == 0.1
    small, _ = method.prepare(images(), None, 0)
    assert small.shape == (16, 1, 4, 4)
    assert torch.allclose(small.mean(), images().mean(), atol=1e-6)
    method.rate(0.1, 1280)
    whole, _ = method.prepare(images(), None, 0)
    assert torch.equal(whole, images())


def test_images_shrink_again_in_each_cycle_and_are_whole_at_the_end() -> None:
    method = ProgressiveResolution(setting(smallest=0.5, full_from=0.5, cycles=2))
    sides = []
    for seen in (0, 320, 639, 640, 960, 1279, 1280):
        method.rate(0.1, seen)
        sides.append(method.prepare(images(), None, 0)[0].shape[-1])
    assert sides == [4, 8, 8, 4, 8, 8, 8]
    assert [within_cycle(place / 8, 1) for place in range(9)] == [place / 8 for place in range(9)]


def test_an_adversary_is_near_uphill_and_leaves_the_network_alone() -> None:
    net, targets = network(), torch.arange(16) % 5
    before = {name: value.clone() for name, value in net.state_dict().items()}
    moved = adversary(net, images(), targets, 0.1)
    assert float((moved - images()).abs().max()) <= 0.1 + 1e-6
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    with torch.no_grad():
        uphill, here = (functional.cross_entropy(net(each), targets) for each in (moved, images()))
    assert float(uphill) > float(here)
    assert all(parameter.grad is None for parameter in net.parameters())


def test_adversaries_are_those_of_the_step_before() -> None:
    net, targets, method = network(), torch.arange(16) % 5, ConAdv(setting(size=0.1))
    method.network(net)
    first, _ = method.prepare(images(), targets, 0)
    assert torch.equal(first, images())
    expected = adversary(net, images()[:8], targets[:8], 0.1)
    second, labels = method.prepare(images() + 1, targets, 0)
    assert torch.equal(second[8:], expected) and torch.equal(labels[8:], targets[:8])
    assert torch.equal(second[:8], images()[:8] + 1)


def quadratic() -> tuple[nn.Linear, torch.Tensor]:
    layer = nn.Linear(3, 1, bias=False).double()
    curvature = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
    return layer, curvature


def loss_of(layer: nn.Linear, curvature: torch.Tensor) -> torch.Tensor:
    return 0.5 * (layer.weight @ curvature @ layer.weight.T).sum()


@pytest.mark.parametrize("rho", [0.0, 0.1])
def test_the_second_gradient_is_that_of_the_formula_and_the_weights_come_back(rho: float) -> None:
    """On 1/2 w'Hw the gradient uphill is H(w + rho Hw/||Hw||)."""
    layer, curvature = quadratic()
    weights = layer.weight.detach().clone()
    method = Sam(setting(rho=rho, adaptive=0))
    loss_of(layer, curvature).backward()
    method.perturb(layer)
    layer.zero_grad()
    loss_of(layer, curvature).backward()
    method.unperturb(layer)
    slope = weights @ curvature
    assert layer.weight.grad is not None
    assert torch.allclose(layer.weight.grad, (weights + rho * slope / slope.norm()) @ curvature, atol=1e-9)
    assert torch.equal(layer.weight, weights)


def test_lars_is_its_formula_and_moves_a_zero_bias() -> None:
    """Elsewhere zero biases never move, and norms are decayed."""
    layer = nn.Linear(3, 2).double()
    nn.init.zeros_(layer.bias)
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    optimizer = Lars(setting(trust=0.01, rate_factor=1.0)).optimizer(layer, RECIPE)
    velocity = torch.zeros_like(weight)
    for _ in range(2):
        layer.zero_grad()
        layer(torch.ones(4, 3, dtype=torch.float64)).square().sum().backward()
        assert layer.weight.grad is not None and layer.bias.grad is not None
        slope, slope_of_bias = layer.weight.grad.clone(), layer.bias.grad.clone()
        share = 0.01 * weight.norm() / (slope.norm() + 1e-2 * weight.norm())
        velocity = 0.9 * velocity + share * (slope + 1e-2 * weight)
        weight = weight - 0.1 * velocity
        optimizer.step()
        assert torch.allclose(layer.weight, weight, atol=1e-12)
    assert bool((layer.bias != bias).all()) and bool((slope_of_bias != 0).all())


def test_the_first_step_of_lamb_is_a_fixed_share_of_the_weights() -> None:
    layer = nn.Linear(3, 2)
    before = layer.weight.detach().clone()
    recipe = RECIPE.model_copy(update={"weight_decay": 0.0, "optimizer": "adam"})
    optimizer = Lamb(setting(clip=0.0, rate_factor=1.0)).optimizer(layer, recipe)
    layer(torch.randn(8, 3)).square().sum().backward()
    optimizer.step()
    assert float((layer.weight.detach() - before).norm()) == pytest.approx(0.1 * float(before.norm()), rel=1e-3)


def test_one_dimensional_parameters_are_not_decayed() -> None:
    groups = parameter_groups(network(), 0.5, adam=True)
    assert all(parameter.ndim > 1 for parameter in groups[0]["params"]) and groups[0]["weight_decay"] == 0.5
    assert all(parameter.ndim == 1 for parameter in groups[1]["params"]) and groups[1]["weight_decay"] == 0.0
    count = sum(len(group["params"]) for group in groups)
    assert count == len(list(network().parameters()))

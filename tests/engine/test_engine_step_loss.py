"""Equal batches must give equal gradients however they are split, also where a mean is not over samples."""

import pytest

from tula_core.engine.launch import WorkerTask, launch


@pytest.mark.parametrize(("processes", "layouts"), [(1, [[24, 1], [1, 24], [8, 3]]), (2, [[12, 1], [3, 4]])])
@pytest.mark.parametrize("empty", [False, True])
def test_the_gradient_is_the_full_batchs_for_any_split(tmp_path, processes, layouts, empty):
    """A mean of means weighs a micro-batch with a tenth of its pixels labelled like one with nine tenths."""
    task = WorkerTask(
        entry="segmentation_entry:gradients_agree",
        payload={"layouts": layouts, "empty": empty},
        folder=tmp_path / "task",
        processes_per_node=processes,
        timeout_s=120,
    )
    errors = launch(task, lambda event: None).unwrap()
    assert len(errors) == len(layouts)
    for gradient_error, loss_error in errors.values():
        assert gradient_error < 1e-6
        assert loss_error < 1e-6

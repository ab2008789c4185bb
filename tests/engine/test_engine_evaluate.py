from pathlib import Path

import pytest
import torch
from tiny_workloads import Mlp, workload

from tula_core.engine.assemble import assemble
from tula_core.engine.context import WorkerContext
from tula_core.engine.evaluate import Evaluation, evaluate


class Limited(Mlp):
    """Refuses more samples than a limit, in evaluation alone."""

    def __init__(self, limit: int, error: Exception) -> None:
        super().__init__()
        self.limit, self.error = limit, error

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.training and len(inputs) > self.limit:
            raise self.error
        return super().forward(inputs)


def evaluated(folder: Path, limit: int, error: Exception, batch: int = 64) -> Evaluation:
    context = WorkerContext({"nodes": 1, "processes_per_node": 1, "rendezvous": ""}, folder)
    made = workload(lambda: Limited(limit, error))
    try:
        return evaluate(assemble(made, made.recipe, context, seed=0), batch)
    finally:
        context.close()


@pytest.mark.parametrize(("limit", "fitting"), [(64, 64), (63, 32), (10, 8), (1, 1)])
def test_an_evaluation_goes_on_in_smaller_batches_with_the_same_result(
    tmp_path: Path, kept_signals: None, limit: int, fitting: int
) -> None:
    whole = evaluated(tmp_path, 1000, MemoryError())
    found = evaluated(tmp_path, limit, torch.OutOfMemoryError("CUDA out of memory"))
    assert (found.metric, found.samples, found.batch) == (whole.metric, 101, fitting)


@pytest.mark.parametrize(("limit", "error"), [(0, MemoryError()), (10, ValueError("a wrong shape"))])
def test_what_no_smaller_batch_mends_is_raised(
    tmp_path: Path, kept_signals: None, limit: int, error: Exception
) -> None:
    with pytest.raises(type(error)):
        evaluated(tmp_path, limit, error)

"""The queue, the auxiliary variables that read it, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F

from papers.kd_aux import FeatureQueue, auxiliary


def rows(n, first=0, classes=3):
    t = F.normalize(torch.randn(n, 4), dim=1)
    return (
        t,
        torch.arange(first, first + n).float()[:, None].expand(n, classes).contiguous(),
        torch.arange(first, first + n) % classes,
    )


def held(queue):
    """The numbers of the rows that a queue holds, oldest first."""
    return sorted(queue.logits[queue.mask][:, 0].int().tolist())


def test_first_in_first_out_around_the_end():
    queue = FeatureQueue(10, 4, 3)
    for first in (0, 4, 8):
        queue.enqueue(*rows(4, first))
    assert held(queue) == list(range(2, 12))
    assert queue.filled == 10


def test_more_rows_than_slots_keep_the_newest():
    queue = FeatureQueue(5, 4, 3)
    queue.enqueue(*rows(2))
    queue.enqueue(*rows(12, 2))
    assert held(queue) == [9, 10, 11, 12, 13]
    queue.enqueue(*rows(1, 14))
    assert held(queue) == [10, 11, 12, 13, 14]


def test_state_goes_round():
    queue, other = FeatureQueue(7, 4, 3), FeatureQueue(7, 4, 3)
    queue.enqueue(*rows(5))
    other.load_state_dict(queue.state_dict())
    for each in (queue, other):
        torch.manual_seed(1)
        each.enqueue(*rows(4, 5))
    for a, b in zip(queue.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert other.t.dtype == torch.float16


def test_classes_that_are_missing_are_named():
    queue = FeatureQueue(8, 4, 5)
    queue.enqueue(*rows(2, classes=5))
    assert queue.missing() == [2, 3, 4]


def gathering(rank, path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    queue = FeatureQueue(6, 4, 3)
    torch.manual_seed(0)
    queue.enqueue(*rows(2, 10 * rank))
    assert held(queue) == [0, 1, 10, 11]
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_ranks_enqueue_each_others_rows(tmp_path):
    torch.multiprocessing.spawn(gathering, (str(tmp_path / "meet"),), nprocs=2)


@pytest.mark.parametrize(("given", "message"), [
    ((torch.ones(2, 3), torch.zeros(2, 3), torch.tensor([0, 1])), "queue of width 4"),
    ((torch.ones(2, 4), torch.zeros(2, 2), torch.tensor([0, 1])), "queue of 3 classes"),
    ((torch.ones(2, 4), torch.zeros(2, 3), torch.tensor([0, 3])), "labels go from 0 to 3"),
    ((torch.ones(2, 4), torch.zeros(2, 3), torch.tensor([0.0, 1.0])), "whole numbers"),
    ((torch.ones(2, 4), torch.full((2, 3), 1e5), torch.tensor([0, 1])), "more than torch.float16 holds"),
    ((torch.zeros(2, 4), torch.zeros(2, 3), torch.tensor([0, 1])), "norm zero"),
    ((torch.ones(2, 4), torch.zeros(2, 3), torch.tensor([0])), "one of each"),
])  # fmt: skip
def test_what_does_not_fit_is_one_sentence(given, message):
    with pytest.raises(ValueError, match=message):
        FeatureQueue(8, 4, 3).enqueue(*given)


@pytest.mark.parametrize("name", ["instance", "instance_label", "prototype", "cluster", "augmentation"])
def test_every_variable_makes_anchors_on_the_sphere_with_finite_probabilities(name):
    queue = FeatureQueue(40, 4, 3)
    queue.enqueue(*rows(30), group=torch.arange(30) % 2)
    anchors = auxiliary.make(name, k=6).anchors(queue)
    kept = anchors.t[anchors.mask].float()
    torch.testing.assert_close(kept.norm(dim=1), torch.ones(len(kept)), atol=2e-3, rtol=0)
    assert bool(torch.isfinite(anchors.logits[anchors.mask]).all())
    assert (
        int(anchors.mask.sum())
        == {"instance": 30, "instance_label": 30, "prototype": 3, "cluster": 6, "augmentation": 6}[name]
    )


def test_clusters_find_the_groups_that_are_there():
    centres = torch.eye(4)
    queue = FeatureQueue(40, 4, 4)
    member = torch.arange(40) % 4
    queue.enqueue(
        F.normalize(centres[member] + 0.05 * torch.randn(40, 4), dim=1), 20 * F.one_hot(member, 4).float(), member
    )
    anchors = auxiliary.Cluster(4).anchors(queue)
    assert sorted((anchors.t @ centres.T).argmax(1).tolist()) == [0, 1, 2, 3]
    assert bool((anchors.logits.exp().max(dim=1).values > 0.99).all())


def test_unknown_variables_are_refused():
    with pytest.raises(ValueError, match="choose instance"):
        auxiliary.make("neighbour")

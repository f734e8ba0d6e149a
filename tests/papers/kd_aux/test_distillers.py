"""Every distiller on one interface: any two modules, the teacher only read, and what does not fit refused."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from papers.kd_aux import Distiller, baselines, distillers, losses, networks, taps
from papers.kd_aux.baselines import Views

VECTOR = distillers.names(("logits", "features"))


def cnns(classes=5):
    return networks.SmallCNN([8, 12, 16], classes), networks.SmallCNN([2, 3, 4], classes)


def mlps(classes=5):
    pair = networks.mlp([6, 16, 12, classes]), networks.mlp([6, 8, 4, classes])
    for model in pair:
        nn.init.constant_(model[2].bias, 1.0)  # no row of these narrow layers is dead by chance
    return pair


def options(method):
    return {"queue": 40} if method.startswith("aux") else {}


def test_the_table_has_every_method():
    assert {"ce", "kd", "fitnet", "at", "sp", "cc", "vid", "rkd", "pkt", "ab", "ft", "fsp", "nst", "crd", "dkd", "reviewkd", "dist",
            "aux_joint", "aux_marginal", "aux_elbo"} <= set(distillers.names())  # fmt: skip


@pytest.mark.parametrize("method", distillers.names())
def test_every_method_trains_a_cnn_and_leaves_the_teacher_as_it_was(method):
    teacher, student = cnns()
    teacher.train()
    before = copy.deepcopy(teacher.state_dict())
    stages = networks.stages(teacher)
    torch.manual_seed(0)
    distiller = Distiller(teacher, student, method, stages, stages, **options(method))
    optimizer = torch.optim.SGD(distiller.parameters(), lr=0.01)
    x, y = torch.randn(12, 1, 16, 16), torch.arange(12) % 5
    for _ in range(2):  # CRD needs a queue that is filled
        loss, terms = distiller.loss(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert math.isfinite(float(loss))
    assert method in terms
    assert all(p.grad is not None for p in student.parameters())
    assert all(p.grad is None for p in teacher.parameters())
    assert teacher.training, "the mode it had"
    assert all(torch.equal(before[key], value) for key, value in teacher.state_dict().items())
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in (*teacher.modules(), *student.modules())
    )


@pytest.mark.parametrize("method", VECTOR)
def test_vector_methods_train_on_what_goes_into_the_last_layer(method):
    teacher, student = mlps()
    distiller = Distiller(teacher, student, method, **options(method))
    for _ in range(2):
        loss, _ = distiller.loss(torch.randn(12, 6), torch.arange(12) % 5)
    loss.backward()
    assert math.isfinite(float(loss.detach()))


def test_total_is_the_weighted_sum_of_its_terms():
    teacher, student = mlps()
    distiller = Distiller(teacher, student, "aux_joint", ce=0.5, kd=2.0, weight=3.0, T=4.0, queue=40)
    loss, terms = distiller.loss(torch.randn(12, 6), torch.arange(12) % 5)
    assert float(loss) == pytest.approx(0.5 * terms["ce"] + 2 * terms["kd"] + 3 * terms["aux_joint"], rel=1e-5)


def test_joint_distiller_is_the_loss_of_the_library():
    teacher, student = mlps()
    distiller = Distiller(teacher, student, "aux_joint", queue=12, dtype="float32")
    x, y = torch.randn(12, 6), torch.arange(12) % 5
    _, terms = distiller.loss(x, y)
    with torch.no_grad():
        (fs,), ls = taps.run(student, x, ["penultimate"])
        (ft,), lt = taps.run(teacher, x, ["penultimate"])
        s, t = F.normalize(distiller.term.project(fs), dim=1), F.normalize(ft, dim=1)
        alive = s.abs().sum(dim=1) > 0  # a row without a direction is left out, and counted
        by_hand = losses.joint(s[alive], t[alive], ls[alive], lt[alive], t)
    assert terms["aux_joint"] == pytest.approx(float(by_hand), rel=1e-4)
    assert terms["zero_norm"] == int((~alive).sum())


def test_linear_head_reads_the_features_not_the_embedding():
    """The projection is trained and then left aside: what it does to s must not change the student's logits."""
    teacher, student = mlps()
    distiller = Distiller(teacher, student, "aux_joint", queue=40)
    x = torch.randn(4, 6)
    before = student(x)
    nn.init.zeros_(distiller.term.project.weight)
    torch.testing.assert_close(student(x), before)
    assert sum(p.numel() for p in distiller.parameters()) == networks.parameters(student) + 4 * 12


def test_without_itself_in_the_queue_the_own_row_has_no_mass():
    teacher, student = mlps()
    x, y = torch.randn(12, 6), torch.arange(12) % 5
    with_self, without = (
        Distiller(teacher, copy.deepcopy(student), "aux_feature", queue=40, exclude_self=e) for e in (False, True)
    )
    without.term.project.load_state_dict(with_self.term.project.state_dict())
    for distiller in (with_self, without):
        distiller.loss(torch.flip(x, [0]) + 0.1, y)
    assert with_self.loss(x, y)[1]["aux_feature"] != without.loss(x, y)[1]["aux_feature"]


def test_batch_norm_of_a_teacher_in_training_mode_would_change_its_words():
    teacher, student = cnns()
    x = torch.randn(6, 1, 16, 16)
    teacher.eval()
    right = teacher(x)
    teacher.train()
    torch.testing.assert_close(Distiller(teacher, student, "kd").teach(x).logits, right)


def test_gradient_norms_by_term():
    teacher, student = mlps()
    distiller = Distiller(teacher, student, "aux_joint", queue=40)
    distiller.gradients = True
    loss, terms = distiller.loss(torch.randn(12, 6), torch.arange(12) % 5)
    loss.backward()
    assert terms["gradient.ce"] > 0
    assert terms["gradient.aux_joint"] > 0


def test_state_goes_round_with_the_queue():
    teacher, student = mlps()
    x, y = torch.randn(12, 6), torch.arange(12) % 5
    first = Distiller(teacher, student, "aux_joint", queue=40)
    first.loss(x, y)
    second = Distiller(teacher, networks.mlp([6, 8, 4, 5]), "aux_joint", queue=40)
    second.load_state_dict(first.state_dict())
    assert first.loss(x, y)[1] == second.loss(x, y)[1]


def test_a_teacher_with_other_classes_serves_feature_terms_alone():
    teacher, student = networks.mlp([6, 16, 12, 9]), networks.mlp([6, 8, 4, 5])
    x, y = torch.randn(12, 6), torch.arange(12) % 5
    for method in ("aux_feature", "sp", "rkd", "pkt", "fitnet", "crd"):
        assert math.isfinite(float(Distiller(teacher, student, method, **options(method)).loss(x, y)[0].detach()))
    for method in ("kd", "dkd", "dist", "aux_joint", "aux_marginal", "aux_elbo"):
        with pytest.raises(ValueError, match="9 classes, the student"):
            Distiller(teacher, student, method, **options(method)).loss(x, y)


def test_a_transformer_teaches_a_small_cnn_and_a_recurrent_net():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8,
                                    num_channels=1, num_labels=5)  # fmt: skip
    vit, (_, cnn) = transformers.ViTForImageClassification(config), cnns()
    x, y = torch.randn(6, 1, 16, 16), torch.arange(6) % 5
    loss, _ = Distiller(vit, cnn, "aux_joint", queue=40).loss(x, y)
    loss.backward()
    text = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=30, num_labels=5
    )
    bert, gru = transformers.BertForSequenceClassification(text), networks.GRUClassifier(30, 8, 5)
    x = {"input_ids": torch.randint(30, (6, 7)), "attention_mask": torch.ones(6, 7, dtype=torch.int64)}
    for feature in (None, "bert.encoder"):
        loss, _ = Distiller(bert, gru, "aux_joint", teacher_feature=feature, example=x, queue=40).loss(x, y)
        assert math.isfinite(float(loss.detach()))


# ---- formulas of the others -------------------------------------------------------------------------------------------


def views(s, t, y=None):
    return Views(
        [s], [t], torch.zeros(len(s), 3), torch.zeros(len(s), 3), torch.arange(len(s)) % 3 if y is None else y, 0
    )


@pytest.mark.parametrize("method", [baselines.SP, baselines.RKD, baselines.PKT, baselines.AT, baselines.NST])
def test_what_compares_relations_is_zero_between_equals(method):
    f = torch.rand(6, 4, 3, 3) + 0.1
    assert abs(float(method([4], [4], 3)(views(f, f.clone())))) < 1e-5


def test_similarity_preserving_by_hand():
    s, t = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    expected = (2 * ((1 - 2**-0.5) ** 2 + 2**-1)) / 4
    assert float(baselines.SP([2], [2], 3)(views(s, t))) == pytest.approx(expected, rel=1e-6)


def test_relational_distances_do_not_see_scale_or_rotation():
    f = torch.randn(6, 4)
    q, _ = torch.linalg.qr(torch.randn(4, 4))
    assert float(baselines.RKD([4], [4], 3)(views(f, 3 * f @ q))) == pytest.approx(0, abs=1e-3)


def test_dist_is_one_minus_pearson():
    a, b = torch.randn(7, 5), torch.randn(7, 5)
    expected = torch.stack([torch.corrcoef(torch.stack([x, z]))[0, 1] for x, z in zip(a, b, strict=True)])
    torch.testing.assert_close(baselines.pearson(a, b), expected)


def test_dkd_weighs_the_parts_of_kd():
    v = Views([], [], torch.randn(8, 5), torch.randn(8, 5), torch.arange(8) % 5, 0)
    tckd, nckd, _ = baselines.dkd_terms(v.logits_s, v.logits_t, v.y, 4.0)
    found = baselines.DKD([], [], 5, target=2.0, others=3.0)(v)
    torch.testing.assert_close(found, 16 * (2 * tckd.mean() + 3 * nckd.mean()))
    assert baselines.DKD([], [], 2).others == 0.0


# ---- bad input ---------------------------------------------------------------------------------------------------------

X, Y = torch.randn(12, 6), torch.arange(12) % 5
BAD = {
    "unknown method": (lambda: Distiller(*mlps(), "krd"), "did you mean.*crd"),
    "unknown setting": (lambda: Distiller(*mlps(), "aux_joint", tua=0.1), "aux_joint has no setting tua: it has"),
    "setting of kd": (lambda: Distiller(*mlps(), "kd", tau=0.1), "kd has no setting tau"),
    "no such student module": (lambda: Distiller(*mlps(), "sp", "layer9", "2"), "the student has no module 'layer9'"),
    "no such teacher module": (lambda: Distiller(*mlps(), "sp", "2", "layer9"), "the teacher has no module 'layer9'"),
    "features not in pairs": (lambda: Distiller(*mlps(), "fitnet", ["0", "2"], "2"), "name them in pairs"),
    "one layer where two are compared": (lambda: Distiller(*mlps(), "fsp", "2", "2"), "at least two features"),
    "maps of vectors": (lambda: Distiller(*mlps(), "at", "2", "2").loss(X, Y), "compares maps"),
    "tau": (lambda: Distiller(*mlps(), "aux_joint", tau=0.0), "tau is 0.0"),
    "T": (lambda: Distiller(*mlps(), "kd", T=-1.0), "T is -1.0"),
    "form": (lambda: Distiller(*mlps(), "aux_joint", form="both"), "choose joint"),
    "queue smaller than the batch": (lambda: Distiller(*mlps(), "aux_joint", queue=4).loss(X, Y), "the queue holds 4 rows, the batch 12"),
    "labels": (lambda: Distiller(*mlps(), "kd").loss(X, Y + 1), "labels go from 1 to 5"),
    "no linear layer": (lambda: Distiller(nn.Conv1d(1, 1, 1), mlps()[1], "sp"), "no linear layer"),
    "width unknown": (lambda: Distiller(nn.Sequential(nn.Linear(6, 4), nn.Softmax(1), nn.Linear(4, 5)), mlps()[1], "aux_joint", None, "1"), "give example="),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message) as told:
        call()
    assert "\n" not in str(told.value)


def test_a_dead_student_and_a_dead_teacher_are_told():
    for which, message in ((0, "a teacher feature has norm zero"), (1, "every student feature has norm zero")):
        pair = mlps()
        nn.init.constant_(pair[which][2].weight, 0.0)
        nn.init.constant_(pair[which][2].bias, -1.0)
        with pytest.raises(ValueError, match=message):
            Distiller(*pair, "aux_joint", queue=40).loss(X, Y)

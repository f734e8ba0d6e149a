"""The benchmark's networks have the published sizes; checkpoints and caches are read or refused in a sentence."""

import pytest
import torch

from papers.kd_aux import checkpoints, networks
from papers.kd_aux.distillers import Taught

SIZES = {  # parameters as published for the benchmark (100 classes) and for ImageNet (1,000)
    "resnet20": 278_324, "resnet32": 472_756, "resnet56": 861_620, "resnet110": 1_736_564, "resnet8x4": 1_233_540, "resnet32x4": 7_433_860,
    "wrn_16_2": 703_284, "wrn_40_1": 569_780, "wrn_40_2": 2_255_156, "vgg8": 3_965_028, "vgg13": 9_462_180, "mobilenetv2": 812_836,
    "shufflev1": 949_258, "shufflev2": 1_355_528, "resnet50_cifar": 23_705_252,
    "resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032, "mobilenetv1": 4_231_976,
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_network_has_its_published_size(name):
    with torch.device("meta"):
        model = networks.make(name, 1000 if name in ("resnet18", "resnet34", "resnet50", "mobilenetv1") else 100)
    assert networks.parameters(model) == SIZES[name]


@pytest.mark.parametrize("name", ["resnet8", "wrn_16_1", "vgg8", "mobilenetv2", "shufflev1", "shufflev2"])
def test_network_reads_small_images_and_names_its_stages(name):
    from papers.kd_aux import taps

    model = networks.make(name, 10).eval()
    with torch.no_grad():
        features, logits = taps.run(model, torch.randn(2, 3, 32, 32), networks.stages(model))
    assert logits.shape == (2, 10)
    assert all(f.dim() == 4 for f in features)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: networks.make("resnet21", 10), "did you mean resnet"),
    (lambda: networks.cifar_resnet(21, 10), "6n \\+ 2"),
    (lambda: networks.WideResNet(41, 2, 10), "6n \\+ 4"),
])  # fmt: skip
def test_unknown_networks_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_checkpoint_of_the_benchmark_is_read(tmp_path):
    model, other = networks.make("resnet8", 10), networks.make("resnet8", 10)
    state = {f"module.{key}": value for key, value in model.state_dict().items()}
    torch.save({"epoch": 240, "model": state, "best_acc": torch.tensor(75.6)}, tmp_path / "t.pth")
    checkpoints.load_into(other, checkpoints.read_state(tmp_path / "t.pth"), "t.pth")
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


class Harmful:
    def __reduce__(self):
        return print, ("this was run",)


def test_checkpoint_that_would_run_code_is_refused(tmp_path, capsys):
    torch.save({"model": Harmful()}, tmp_path / "t.pth")
    with pytest.raises(ValueError, match=r"t\.pth is no checkpoint of weights alone"):
        checkpoints.read_state(tmp_path / "t.pth")
    assert "this was run" not in capsys.readouterr().out


@pytest.mark.parametrize(("change", "message"), [
    (lambda s: s.pop("fc.bias"), "lacks fc.bias"), (lambda s: s.update(extra=torch.ones(1)), "has extra, which the model has not"),
    (lambda s: s.update({"fc.bias": torch.ones(3)}), "fc.bias of shape"), (lambda s: s.update({"fc.bias": torch.full((10,), float("nan"))}), "not finite"),
])  # fmt: skip
def test_checkpoint_of_another_model_is_one_sentence(change, message):
    model = networks.make("resnet8", 10)
    state = dict(model.state_dict())
    change(state)
    with pytest.raises(ValueError, match=message):
        checkpoints.load_into(model, state, "t.pth")


def test_cache_of_other_data_is_refused(tmp_path):
    teacher, x = networks.mlp([3, 4, 2]), torch.randn(5, 3)
    taught = Taught([torch.randn(5, 4)], torch.randn(5, 2))
    key = checkpoints.cache_key(teacher, x, ["penultimate"])
    checkpoints.save_taught(tmp_path / "words.safetensors", taught, key)
    kept = checkpoints.load_taught(tmp_path / "words.safetensors", key)
    assert torch.equal(kept.logits, taught.logits)
    assert torch.equal(kept.features[0], taught.features[0])
    for other in (checkpoints.cache_key(teacher, x + 1, ["penultimate"]), checkpoints.cache_key(networks.mlp([3, 4, 2]), x, ["penultimate"]),
                  checkpoints.cache_key(teacher, x, ["0"]), checkpoints.cache_key(teacher, x, ["penultimate"], "flip")):  # fmt: skip
        with pytest.raises(ValueError, match=r"words\.safetensors belongs to another teacher"):
            checkpoints.load_taught(tmp_path / "words.safetensors", other)

"""Networks of the benchmark: CIFAR ResNet, wide ResNet, VGG, MobileNetV2, ShuffleNet V1 and V2; ImageNet ResNet, MobileNetV1; small ones.

Module names are those of the public CIFAR-100 benchmark, so that its checkpoints of ResNet, wide ResNet and VGG load.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.errors import did_you_mean


def conv(a: int, b: int, kernel: int = 3, stride: int = 1, groups: int = 1, bias: bool = False) -> nn.Conv2d:
    return nn.Conv2d(a, b, kernel, stride, kernel // 2, groups=groups, bias=bias)


def conv_bn(
    a: int, b: int, kernel: int = 3, stride: int = 1, groups: int = 1, relu: type[nn.Module] | None = nn.ReLU
) -> nn.Sequential:
    return nn.Sequential(conv(a, b, kernel, stride, groups), nn.BatchNorm2d(b), *([relu()] if relu else []))


class Columns(nn.Module):
    """Some columns of a table: what a model is allowed to see of an input."""

    def __init__(self, first: int, last: int):
        super().__init__()
        self.first, self.last = first, last

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.first : self.last]


def mlp(widths: list[int], see: tuple[int, int] | None = None) -> nn.Sequential:
    """Linear and ReLU in turn: widths[0] inputs, widths[-1] classes. see: the columns of the input that it is given."""
    layers: list[nn.Module] = [] if see is None else [Columns(*see)]
    for a, b in zip(widths[:-1], widths[1:], strict=True):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class SmallCNN(nn.Module):
    """Three 3 x 3 convolutions of stride 2, the mean of the last maps, a linear layer."""

    def __init__(self, widths: list[int], classes: int, channels: int = 1):
        super().__init__()
        self.stages = nn.ModuleList(conv_bn(a, b, stride=2) for a, b in zip([channels, *widths], widths, strict=False))
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return self.fc(x.mean(dim=(2, 3)))


class GRUClassifier(nn.Module):
    """A recurrent student for tokens (embed) or frames (B, T, D): the mean of its states, a linear layer."""

    def __init__(self, inputs: int, width: int, classes: int, embed: bool = True):
        super().__init__()
        self.embed: nn.Module = nn.Embedding(inputs, width) if embed else nn.Linear(inputs, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.fc = nn.Linear(width, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        states = self.gru(self.embed(input_ids))[0]  # (B, T, width)
        weight = torch.ones_like(states[..., :1]) if attention_mask is None else attention_mask[..., None].to(states)
        return self.fc((states * weight).sum(dim=1) / weight.sum(dim=1).clamp_min(1))


# ---- residual networks -----------------------------------------------------------------------------------------------


class Basic(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, a: int, b: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = conv(a, b, 3, stride), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = conv(b, b), nn.BatchNorm2d(b)
        self.downsample = nn.Sequential(conv(a, b, 1, stride), nn.BatchNorm2d(b)) if stride != 1 or a != b else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1, four times as wide at the end, and a shortcut."""

    expansion = 4

    def __init__(self, a: int, b: int, stride: int, shortcut: str = "downsample"):
        super().__init__()
        self.conv1, self.bn1 = conv(a, b, 1), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = conv(b, b, 3, stride), nn.BatchNorm2d(b)
        self.conv3, self.bn3 = conv(b, 4 * b, 1), nn.BatchNorm2d(4 * b)
        self.downsample = (
            nn.Sequential(conv(a, 4 * b, 1, stride), nn.BatchNorm2d(4 * b)) if stride != 1 or a != 4 * b else None
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """Stages of residual blocks; a 3 x 3 stem for 32 x 32 images, 7 x 7 and a pooling for 224 x 224."""

    def __init__(
        self,
        block: type[Basic] | type[Bottleneck],
        stem: int,
        widths: list[int],
        depths: list[int],
        classes: int,
        large: bool = False,
    ):
        super().__init__()
        self.conv1 = nn.Conv2d(3, stem, 7, 2, 3, bias=False) if large else conv(3, stem)
        self.bn1, self.large, self.n = nn.BatchNorm2d(stem), large, len(widths)
        a = stem
        for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            blocks = []
            for j in range(depth):
                blocks.append(block(a, width, 2 if i and not j else 1))
                a = width * block.expansion
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(a, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        if self.large:
            x = F.max_pool2d(x, 3, 2, 1)
        for i in range(self.n):
            x = getattr(self, f"layer{i + 1}")(x)
        return self.fc(x.mean(dim=(2, 3)))


def initialise(model: nn.Module) -> None:
    """Kaiming normal by outputs for convolutions, ones and zeros for batch norms."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def cifar_resnet(depth: int, classes: int, wide: bool = False) -> ResNet:
    """Depth 6n + 2: widths 16, 16, 32, 64; the x4 variants have a stem of 32 and 64, 128, 256."""
    n, rest = divmod(depth - 2, 6)
    if rest or n < 1:
        raise ValueError(f"depth is {depth}: a CIFAR ResNet has 6n + 2 layers")
    stem, widths = (32, [64, 128, 256]) if wide else (16, [16, 32, 64])
    return ResNet(Basic, stem, widths, [n] * 3, classes)


class WideBlock(nn.Module):
    """Norm before convolution, twice; a 1 x 1 shortcut where widths differ."""

    def __init__(self, a: int, b: int, stride: int):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(a), conv(a, b, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(b), conv(b, b)
        self.convShortcut = conv(a, b, 1, stride) if a != b else None

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(x))
        y = self.conv2(F.relu(self.bn2(self.conv1(h))))
        return y + (x if self.convShortcut is None else self.convShortcut(h))


class WideGroup(nn.Module):
    def __init__(self, n: int, a: int, b: int, stride: int):
        super().__init__()
        self.layer = nn.Sequential(*(WideBlock(a if i == 0 else b, b, stride if i == 0 else 1) for i in range(n)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class WideResNet(nn.Module):
    """WRN-depth-k: depth 6n + 4, widths 16k, 32k, 64k."""

    def __init__(self, depth: int, k: int, classes: int):
        super().__init__()
        n, rest = divmod(depth - 4, 6)
        if rest or n < 1:
            raise ValueError(f"depth is {depth}: a wide ResNet has 6n + 4 layers")
        self.conv1 = conv(3, 16)
        self.block1, self.block2, self.block3 = (
            WideGroup(n, 16, 16 * k, 1),
            WideGroup(n, 16 * k, 32 * k, 2),
            WideGroup(n, 32 * k, 64 * k, 2),
        )
        self.bn1, self.fc = nn.BatchNorm2d(64 * k), nn.Linear(64 * k, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        return self.fc(F.relu(self.bn1(x)).mean(dim=(2, 3)))


class VGG(nn.Module):
    """Five groups of 3 x 3 convolutions with batch norm, 512 features, one linear layer."""

    def __init__(self, groups: list[list[int]], classes: int):
        super().__init__()
        a = 3
        for i, widths in enumerate(groups):
            layers: list[nn.Module] = []
            for b in widths:
                layers += [conv(a, b, bias=True), nn.BatchNorm2d(b), nn.ReLU()]
                a = b
            setattr(self, f"block{i}", nn.Sequential(*layers[:-1]))
        self.classifier = nn.Linear(a, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        for i in range(5):
            x = F.relu(getattr(self, f"block{i}")(x))
            if i < 4 and x.shape[2] > 4:
                x = F.max_pool2d(x, 2)
        return self.classifier(x.mean(dim=(2, 3)))


# ---- small networks of separable convolutions ------------------------------------------------------------------------


class Inverted(nn.Module):
    """MobileNetV2: wide 1 x 1, depthwise 3 x 3, narrow 1 x 1."""

    def __init__(self, a: int, b: int, stride: int, expand: int):
        super().__init__()
        w = a * expand
        self.conv = nn.Sequential(*conv_bn(a, w, 1), *conv_bn(w, w, 3, stride, w), *conv_bn(w, b, 1, relu=None))
        self.add = stride == 1 and a == b

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.add else self.conv(x)


class MobileNetV2(nn.Module):
    """MobileNetV2 at half width for 32 x 32 images."""

    def __init__(self, classes: int, width: float = 0.5, expand: int = 6):
        super().__init__()
        table = [
            (1, 16, 1, 1),
            (expand, 24, 2, 1),
            (expand, 32, 3, 2),
            (expand, 64, 4, 2),
            (expand, 96, 3, 1),
            (expand, 160, 3, 2),
            (expand, 320, 1, 1),
        ]
        a = int(32 * width)
        self.conv1 = conv_bn(3, a, 3, 2)
        self.blocks = nn.ModuleList()
        for t, c, n, stride in table:
            b = int(c * width)
            layers = [Inverted(a if i == 0 else b, b, stride if i == 0 else 1, t) for i in range(n)]
            self.blocks.append(nn.Sequential(*layers))
            a = b
        last = int(1280 * width) if width > 1 else 1280
        self.conv2 = conv_bn(a, last, 1)
        self.classifier = nn.Sequential(nn.Linear(last, classes))
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.conv2(x).mean(dim=(2, 3)))


class Layers(nn.Module):
    """A model whose stages are named layer1, layer2, layer3, as the benchmark's are."""

    def stages(self, x: Tensor) -> Tensor:
        for i in range(3):
            x = getattr(self, f"layer{i + 1}")(x)
        return x


def shuffle(x: Tensor, groups: int) -> Tensor:
    """Channels of the groups dealt out in turn."""
    B, C, H, W = x.shape
    return x.view(B, groups, C // groups, H, W).transpose(1, 2).reshape(B, C, H, W)


class ShuffleUnit1(nn.Module):
    """Grouped 1 x 1, shuffle, depthwise 3 x 3, grouped 1 x 1; joined by a pooled shortcut where it strides."""

    def __init__(self, a: int, b: int, stride: int, groups: int):
        super().__init__()
        self.stride, middle = stride, b // 4
        self.groups = 1 if a == 24 else groups
        self.conv1, self.bn1 = conv(a, middle, 1, groups=self.groups), nn.BatchNorm2d(middle)
        self.conv2, self.bn2 = conv(middle, middle, 3, stride, middle), nn.BatchNorm2d(middle)
        self.conv3, self.bn3 = conv(middle, b, 1, groups=groups), nn.BatchNorm2d(b)

    def forward(self, x: Tensor) -> Tensor:
        y = shuffle(F.relu(self.bn1(self.conv1(x))), self.groups)
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)))))
        return F.relu(torch.cat([y, F.avg_pool2d(x, 3, 2, 1)], 1)) if self.stride == 2 else F.relu(y + x)


class ShuffleNetV1(Layers):
    """ShuffleNet V1, three groups, 240 / 480 / 960 channels, for 32 x 32 images."""

    def __init__(
        self,
        classes: int,
        widths: tuple[int, ...] = (240, 480, 960),
        depths: tuple[int, ...] = (4, 8, 4),
        groups: int = 3,
    ):
        super().__init__()
        self.conv1, self.bn1 = conv(3, 24, 1), nn.BatchNorm2d(24)
        a = 24
        for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            units = []
            for j in range(depth):
                units.append(ShuffleUnit1(a, width - a if j == 0 else width, 2 if j == 0 else 1, groups))
                a = width
            setattr(self, f"layer{i + 1}", nn.Sequential(*units))
        self.linear = nn.Linear(a, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.linear(self.stages(x).mean(dim=(2, 3)))


class ShuffleUnit2(nn.Module):
    """Half of the channels pass, half are convolved; where it strides both halves are made anew."""

    def __init__(self, a: int, b: int, stride: int):
        super().__init__()
        self.stride, half = stride, b // 2
        inner = a if stride == 2 else half
        self.main = nn.Sequential(
            *conv_bn(inner, half, 1), *conv_bn(half, half, 3, stride, half, relu=None), *conv_bn(half, half, 1)
        )
        self.side = nn.Sequential(*conv_bn(a, a, 3, 2, a, relu=None), *conv_bn(a, half, 1)) if stride == 2 else None

    def forward(self, x: Tensor) -> Tensor:
        if self.side is not None:
            return shuffle(torch.cat([self.side(x), self.main(x)], 1), 2)
        keep, work = x.chunk(2, dim=1)
        return shuffle(torch.cat([keep, self.main(work)], 1), 2)


class ShuffleNetV2(Layers):
    """ShuffleNet V2 at width 1 (116, 232, 464, 1024) for 32 x 32 images."""

    def __init__(
        self,
        classes: int,
        widths: tuple[int, ...] = (116, 232, 464),
        last: int = 1024,
        depths: tuple[int, ...] = (3, 7, 3),
    ):
        super().__init__()
        self.conv1 = conv_bn(3, 24, 1)
        a = 24
        for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            units = [ShuffleUnit2(a, width, 2), *(ShuffleUnit2(width, width, 1) for _ in range(depth))]
            setattr(self, f"layer{i + 1}", nn.Sequential(*units))
            a = width
        self.conv2 = conv_bn(a, last, 1)
        self.linear = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.conv1(x))
        return self.linear(self.conv2(x).mean(dim=(2, 3)))


class MobileNetV1(nn.Module):
    """MobileNetV1 for 224 x 224 images: depthwise 3 x 3 and 1 x 1 in turn."""

    def __init__(self, classes: int):
        super().__init__()
        plan = [
            (32, 64, 1),
            (64, 128, 2),
            (128, 128, 1),
            (128, 256, 2),
            (256, 256, 1),
            (256, 512, 2),
            *[(512, 512, 1)] * 5,
            (512, 1024, 2),
            (1024, 1024, 1),
        ]
        layers = [conv_bn(3, 32, 3, 2)]
        layers += [nn.Sequential(*conv_bn(a, a, 3, s, a), *conv_bn(a, b, 1)) for a, b, s in plan]
        self.model = nn.Sequential(*layers)
        self.fc = nn.Linear(1024, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.model(x).mean(dim=(2, 3)))


V13 = [[64, 64], [128, 128], [256, 256], [512, 512], [512, 512]]
V8 = [[64], [128], [256], [512], [512]]
MAKE: dict[str, Callable[[int], nn.Module]] = {
    **{f"resnet{d}": partial(cifar_resnet, d) for d in (8, 14, 20, 32, 44, 56, 110)},
    **{f"resnet{d}x4": partial(cifar_resnet, d, wide=True) for d in (8, 32)},
    **{f"wrn_{d}_{k}": partial(WideResNet, d, k) for d, k in ((16, 1), (16, 2), (40, 1), (40, 2))},
    "vgg8": lambda c: VGG(V8, c),
    "vgg13": lambda c: VGG(V13, c),
    "resnet50_cifar": lambda c: ResNet(Bottleneck, 64, [64, 128, 256, 512], [3, 4, 6, 3], c),
    "mobilenetv2": lambda c: MobileNetV2(c),
    "shufflev1": lambda c: ShuffleNetV1(c),
    "shufflev2": lambda c: ShuffleNetV2(c),
    "resnet18": lambda c: ResNet(Basic, 64, [64, 128, 256, 512], [2, 2, 2, 2], c, large=True),
    "resnet34": lambda c: ResNet(Basic, 64, [64, 128, 256, 512], [3, 4, 6, 3], c, large=True),
    "resnet50": lambda c: ResNet(Bottleneck, 64, [64, 128, 256, 512], [3, 4, 6, 3], c, large=True),
    "mobilenetv1": lambda c: MobileNetV1(c),
}  # fmt: skip
LATE = ("mobilenetv2", "shufflev1", "shufflev2")  # of the benchmark: trained at a smaller rate


def make(name: str, classes: int) -> nn.Module:
    """A network of the benchmark by name. ValueError names what there is."""
    if name not in MAKE:
        raise ValueError(f"network is {name!r}: {did_you_mean('choose', name, list(MAKE))}")
    return MAKE[name](classes)


def stages(model: nn.Module) -> list[str]:
    """Dotted names of a network's feature maps, early to late."""
    wanted: Any = {SmallCNN: ["stages.0", "stages.1", "stages.2"], WideResNet: ["block1", "block2", "block3"],
                   VGG: [f"block{i}" for i in range(1, 5)], MobileNetV2: [f"blocks.{i}" for i in (1, 2, 4, 6)],
                   ShuffleNetV1: ["layer1", "layer2", "layer3"], ShuffleNetV2: ["layer1", "layer2", "layer3"]}  # fmt: skip
    if type(model) in wanted:
        return wanted[type(model)]
    if isinstance(model, ResNet):
        return [f"layer{i + 1}" for i in range(model.n)]
    raise ValueError(f"{type(model).__name__} has no list of stages here: name its modules")


def parameters(model: nn.Module) -> int:
    """How many numbers a model has to learn."""
    return sum(p.numel() for p in model.parameters())

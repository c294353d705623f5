"""Small models of every kind that the partition must cut or leave whole."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class LeNet5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


class BasicBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int, norm=nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = norm(after)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """The CIFAR layout; widths (64, 128, 256, 512) and two blocks each is ResNet-18."""

    def __init__(self, widths=(64, 128, 256, 512), blocks: int = 2, norm=nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.bn1 = norm(widths[0])
        stages, before = [], widths[0]
        for number, width in enumerate(widths):
            stage = []
            for block in range(blocks):
                stage.append(BasicBlock(before, width, 2 if number and not block else 1, norm))
                before = width
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(before, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stages(F.relu(self.bn1(self.conv1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class InvertedResidual(nn.Module):
    def __init__(self, before: int, after: int, expansion: int = 3) -> None:
        super().__init__()
        hidden = before * expansion
        self.residual = before == after
        self.body = nn.Sequential(
            nn.Conv2d(before, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(),
            nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(),
            nn.Conv2d(hidden, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.residual else self.body(x)


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.blocks = nn.Sequential(InvertedResidual(8, 8), InvertedResidual(8, 12), InvertedResidual(12, 12))
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(1, 8, 3, padding=1)
        self.down2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(16, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 12, 2, stride=2)
        self.join = nn.Conv2d(20, 10, 3, padding=1)
        self.last = nn.Conv2d(10, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = F.relu(self.down1(x))
        low = F.relu(self.middle(F.relu(self.down2(high))))
        return self.last(F.relu(self.join(torch.cat((self.up(low), high), dim=1))))


class Attention(nn.Module):
    """Hand-written multi-head attention, with its sizes written into the reshapes."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, self.heads, self.width // self.heads).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, self.width)
        return self.out(y)


class TorchAttention(nn.MultiheadAttention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x, x, x, need_weights=False)[0]


class Transformer(nn.Module):
    def __init__(self, own: bool = True, width: int = 16, blocks: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.position = nn.Parameter(0.1 * torch.randn(1, 6, width))
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(width),
                    "attention": Attention(width, 4) if own else TorchAttention(width, 4, batch_first=True),
                    "norm2": nn.LayerNorm(width),
                    "mlp": nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width)),
                }
            )
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.position
        for block in self.blocks:
            x = x + block["attention"](block["norm1"](x))
            x = x + block["mlp"](block["norm2"](x))
        return self.head(self.norm(x).mean(1))


class LoRALinear(nn.Module):
    def __init__(self, before: int, after: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(before, after).requires_grad_(False)
        self.lora_A = nn.Linear(before, rank, bias=False)
        self.lora_B = nn.Linear(rank, after, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.scaling = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.scaling * self.lora_B(self.lora_A(x))


def lora() -> nn.Sequential:
    return nn.Sequential(LoRALinear(12, 20, 4), nn.ReLU(), LoRALinear(20, 5, 4))


class ResNeXtBlock(nn.Module):
    """A grouped convolution between two plain ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 1)
        self.conv2 = nn.Conv2d(16, 24, 3, padding=1, groups=8)
        self.conv3 = nn.Conv2d(24, 6, 1)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv3(F.relu(self.conv2(F.relu(self.conv1(x))))))
        return self.fc(x.mean((2, 3)))


class MixedNorms(nn.Module):
    """BatchNorm, InstanceNorm and PReLU on channels, a flattening, and a bare parameter as scale."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.PReLU(8),
            nn.Conv2d(8, 12, 3),
            nn.InstanceNorm2d(12, affine=True, track_running_stats=True),
            nn.ReLU(),
            nn.AvgPool2d(2),
        )
        self.hidden = nn.Linear(48, 30)
        self.scale = nn.Parameter(torch.rand(30))
        self.head = nn.Linear(30, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.scale * self.hidden(self.features(x).flatten(1))))


class GatedUnit(nn.Module):
    """The two halves of one layer's outputs meet: a unit is a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 32)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.gate(x).chunk(2, dim=-1)
        return self.head(value * torch.sigmoid(gate))


class Shuffle(nn.Module):
    """Traces well, but the channel shuffle has its sizes from before the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.conv3 = nn.Conv2d(8, 8, 1, groups=2)
        self.fc1 = nn.Linear(8, 6)
        self.fc2 = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv2(F.relu(self.conv1(x)))
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(x.shape)
        return self.fc2(F.relu(self.fc1(F.relu(self.conv3(x)).mean((2, 3)))))


class UnitAverage(nn.Module):
    """Hidden units divided by their number: cut, that would be another number."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 10)
        self.fc2 = nn.Linear(10, 3)
        self.fc3 = nn.Linear(3, 4)
        self.fc4 = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sigmoid(self.fc1(x))
        return self.fc4(torch.relu(self.fc3(self.fc2(x / x.shape[1]))))


class SquareResidual(nn.Module):
    """The residual stream goes into a square layer and comes out of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 10)
        self.fc2 = nn.Linear(10, 10)
        self.fc3 = nn.Linear(10, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.fc1(x))
        return self.fc3(x + torch.relu(self.fc2(x)))


def images(channels: int, side: int, batch: int = 4) -> torch.Tensor:
    return torch.randn(batch, channels, side, side, generator=torch.Generator().manual_seed(7))


def tokens(batch: int = 4) -> torch.Tensor:
    return torch.randint(0, 11, (batch, 6), generator=torch.Generator().manual_seed(7))

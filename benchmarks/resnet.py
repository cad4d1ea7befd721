"""ResNet-50 with the stride in the 3x3 convolution, so that the benchmark needs no other package."""

import torch
from torch import nn

__all__ = ["resnet50"]


class Bottleneck(nn.Module):
    def __init__(self, num_in: int, width: int, stride: int) -> None:
        super().__init__()
        num_out = 4 * width
        self.path = nn.Sequential(
            nn.Conv2d(num_in, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, num_out, 1, bias=False),
            nn.BatchNorm2d(num_out),
        )
        self.shortcut = nn.Identity() if num_in == num_out else _projection(num_in, num_out, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.path(images) + self.shortcut(images))


def _projection(num_in: int, num_out: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(num_in, num_out, 1, stride, bias=False), nn.BatchNorm2d(num_out))


def resnet50(num_classes: int = 1000) -> nn.Module:
    """Return the network, which maps float [B, 3, H, W] to [B, num_classes]."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    num_in = 64
    for width, num_blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(num_blocks):
            layers.append(Bottleneck(num_in, width, 2 if number == 0 and width > 64 else 1))
            num_in = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(num_in, num_classes))

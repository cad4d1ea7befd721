"""The networks that the benchmarks train, so that these need no other package: ResNet-50 and ViT-B/16."""

import torch
from torch import nn

__all__ = ["resnet50", "vit_b"]


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
    """Return the network, which maps float [B, 3, H, W] to [B, num_classes]; the 3x3 convolutions have the stride."""
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


class VisionTransformer(nn.Module):
    """Patches of 16 x 16, 12 layers of width 768 with 12 heads, and the mean of all tokens."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.places = nn.Parameter(torch.zeros(1, 14 * 14, 768))
        layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.head = nn.Linear(768, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        found: torch.Tensor = self.head(self.layers(tokens).mean(1))
        return found


def vit_b(num_classes: int = 1000) -> nn.Module:
    """Return the network, which maps float [B, 3, 224, 224] to [B, num_classes]."""
    return VisionTransformer(num_classes)

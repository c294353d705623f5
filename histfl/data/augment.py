"""Random variants of training images, as used on CIFAR-10: a shifted crop, mirrored or not."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from histfl.data.inputs import Inputs, parts
from histfl.errors import UsageError


@dataclass(frozen=True)
class CropFlip:
    """Pad an image by `padding` pixels on every side, cut out its own size anywhere, mirror half of them.

    The padding holds zeros: with normalised inputs, the mean pixel and not a black one. A variant is one
    whole number, so that who draws it decides what is random.
    """

    padding: int = 4

    @property
    def num_variants(self) -> int:
        """Every place of the crop, plain and mirrored."""
        return 2 * (2 * self.padding + 1) ** 2

    def apply(self, images: torch.Tensor, variants: torch.Tensor) -> torch.Tensor:
        """Variant variants[i] in 0 .. num_variants - 1 of images[i], [image, channel, height, width]."""
        height, width = images.shape[2:]
        places = 2 * self.padding + 1
        mirrored, place = variants[:, None] // places**2, variants[:, None] % places**2
        row = torch.arange(height, device=images.device) + place // places
        column = torch.arange(width, device=images.device)
        column = torch.where(mirrored == 1, width - 1 - column, column) + place % places
        padded = F.pad(images, [self.padding] * 4)
        taken = (row[:, :, None] * padded.shape[3] + column[:, None, :]).flatten(start_dim=1)
        found = padded.flatten(start_dim=2).gather(2, taken[:, None, :].expand(-1, images.shape[1], -1))
        return found.view(images.shape)


AUGMENTATIONS: dict[str, CropFlip | None] = {"none": None, "crop-flip": CropFlip()}


def augmentation(name: str, inputs: Inputs) -> CropFlip | None:
    """The augmentation of that name, for which `inputs` [sample, ...] must be images."""
    if name not in AUGMENTATIONS:
        raise UsageError(f"augment = {name!r} is not known; use {' or '.join(AUGMENTATIONS)}")
    chosen = AUGMENTATIONS[name]
    if chosen is None:
        return None
    if not isinstance(inputs, torch.Tensor) or inputs.dim() != 4 or not inputs.is_floating_point():
        kinds = " and ".join(f"{x.dtype} of shape {tuple(x.shape)}" for x in parts(inputs))
        raise UsageError(
            f"augment = {name!r} is for images [sample, channel, height, width] of real numbers, and the inputs "
            f"are {kinds}; set it to 'none'"
        )
    return chosen

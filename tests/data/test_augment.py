"""Random crops and mirrored images, against one image at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from histfl.data import CropFlip, augmentation
from histfl.errors import UsageError


def one_by_hand(image: torch.Tensor, variant: int, padding: int) -> torch.Tensor:
    """Write the image into a larger black one, cut out a window, mirror it."""
    channels, height, width = image.shape
    places = 2 * padding + 1
    mirrored, place = divmod(variant, places**2)
    top, left = divmod(place, places)
    canvas = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
    canvas[:, padding : padding + height, padding : padding + width] = image
    window = canvas[:, top : top + height, left : left + width]
    return window.flip(2) if mirrored else window


@settings(deadline=None)
@given(
    channels=st.integers(1, 3),
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    padding=st.integers(0, 4),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_every_variant_is_the_one_cut_by_hand(
    channels: int, height: int, width: int, padding: int, dtype: torch.dtype
) -> None:
    augment = CropFlip(padding)
    variants = torch.arange(augment.num_variants)
    generator = torch.Generator().manual_seed(height)
    images = torch.randn(len(variants), channels, height, width, generator=generator).to(dtype)
    before = images.clone()
    found = augment.apply(images, variants)
    assert found.dtype == dtype
    assert torch.equal(images, before)
    for image, variant, own in zip(images, variants.tolist(), found, strict=True):
        assert torch.equal(own, one_by_hand(image, variant, padding))


def test_padding_by_four_has_the_image_itself_and_its_mirror_image() -> None:
    images = torch.arange(2 * 3 * 32 * 32.0).view(2, 3, 32, 32)
    augment = CropFlip()
    assert augment.num_variants == 2 * 9 * 9
    middle = 4 * 9 + 4
    found = augment.apply(images, torch.tensor([middle, middle + 81]))
    assert torch.equal(found[0], images[0])
    assert torch.equal(found[1], images[1].flip(2))


def test_augmentation_by_name() -> None:
    images = torch.zeros(4, 3, 8, 8)
    assert augmentation("none", torch.zeros(4, 5)) is None
    assert augmentation("crop-flip", images) == CropFlip(4)
    with pytest.raises(UsageError, match="use none or crop-flip"):
        augmentation("mixup", images)
    for no_images in (torch.zeros(4, 5), images.long()):
        with pytest.raises(UsageError, match=r"for images .* set it to 'none'"):
            augmentation("crop-flip", no_images)

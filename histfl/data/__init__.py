"""Data sets (load, verify, fetch) and their two-level splits over cells and clients."""

from histfl.data.accepted import on_disk
from histfl.data.augment import CropFlip, augmentation
from histfl.data.dataset import TensorData, as_tensor_data, train_and_test
from histfl.data.holdings import Split, given_split, label_mix
from histfl.data.sources import DATASETS, fetch, load, load_text, locate
from histfl.data.splits import READ_CONCENTRATIONS, SPLITS, WITHOUT_LABELS, split
from histfl.data.text import load_tokens

__all__ = [
    "DATASETS",
    "READ_CONCENTRATIONS",
    "SPLITS",
    "WITHOUT_LABELS",
    "CropFlip",
    "Split",
    "TensorData",
    "as_tensor_data",
    "augmentation",
    "fetch",
    "given_split",
    "label_mix",
    "load",
    "load_text",
    "load_tokens",
    "locate",
    "on_disk",
    "split",
    "train_and_test",
]

"""Data sets (load, verify, fetch) and their two-level splits over cells and clients."""

from histfl.data.augment import CropFlip, augmentation
from histfl.data.dataset import TensorData, TextData, as_tensor_data, train_and_test
from histfl.data.sources import DATASETS, fetch, load, load_text, locate
from histfl.data.splits import GIVEN, READ_CONCENTRATIONS, SPLITS, Split, given_split, label_mix, split
from histfl.data.store import Source
from histfl.data.text import load_tokens, tokenise

__all__ = [
    "DATASETS",
    "GIVEN",
    "READ_CONCENTRATIONS",
    "SPLITS",
    "CropFlip",
    "Source",
    "Split",
    "TensorData",
    "TextData",
    "as_tensor_data",
    "augmentation",
    "fetch",
    "given_split",
    "label_mix",
    "load",
    "load_text",
    "load_tokens",
    "locate",
    "split",
    "tokenise",
    "train_and_test",
]

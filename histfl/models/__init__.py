"""The paper's models; a new one is a function and a line in `MODELS`."""

from histfl.models.registry import MODELS, build_model

__all__ = ["MODELS", "build_model"]

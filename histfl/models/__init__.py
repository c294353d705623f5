"""The paper's models; a new one is a function and a line in `MODELS`."""

from histfl.models.registry import MODELS, build_model, check_model_size

__all__ = ["MODELS", "build_model", "check_model_size"]

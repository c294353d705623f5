"""Pretrained transformers by hub name or local folder; the one place that asks for `transformers`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from histfl.errors import UsageError

INSTALL_LINE = "pip install 'histfl[lora]'"


def load_tokenizer(base: str) -> Any:
    """The tokenizer of the pretrained model `base`."""
    return _load("AutoTokenizer", base)


def load_transformer(base: str, **options: Any) -> Any:
    """The pretrained model `base` without a task's head, in eval mode; `options` as in `from_pretrained`."""
    return _load("AutoModel", base, **options)


def gguf_file(base: str) -> str | None:
    """The GGUF file in the local folder `base` that has no other form of the model, if there is one."""
    folder = Path(base).expanduser()
    if not folder.is_dir() or (folder / "config.json").exists():
        return None
    found = sorted(path.name for path in folder.glob("*.gguf"))
    if len(found) > 1:
        raise UsageError(f"{base} holds {len(found)} GGUF files, {', '.join(found)}; leave one there")
    return found[0] if found else None


def _load(kind: str, base: str, **options: Any) -> Any:
    with _library() as transformers:
        if (file := gguf_file(base)) is not None:
            options["gguf_file"] = file
        folder = Path(base).expanduser()
        try:
            return getattr(transformers, kind).from_pretrained(
                str(folder) if folder.is_dir() else base, **options
            )
        except ImportError as error:
            raise UsageError(f"cannot load {base!r}: {_first_line(error)}; {INSTALL_LINE}") from None
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(
                f"cannot load {base!r}: {_first_line(error)}; name a model of the hub that can be reached, or a "
                "local folder with config.json and weights, or with one GGUF file"
            ) from None


@contextmanager
def _library() -> Iterator[Any]:
    """The library `transformers`, without its progress bars meanwhile."""
    # One warning per call in a process that forks, and we make no threads of it worth keeping.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    try:
        import transformers
    except ImportError:
        raise UsageError(f"pretrained models need the package transformers; {INSTALL_LINE}") from None
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        if shown:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]

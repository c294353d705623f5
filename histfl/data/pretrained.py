"""Pretrained transformers by hub name or local folder; the one module that asks for `transformers`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from histfl.data.store import places
from histfl.errors import UsageError, in_one_line, missing_extra


def load_tokenizer(base: str, data_dir: Path | str | None = None) -> Any:
    """The tokenizer of the pretrained model `base`."""
    return _load("AutoTokenizer", base, data_dir)


def load_transformer(base: str, data_dir: Path | str | None = None, **options: Any) -> Any:
    """The pretrained model `base` without a task's head, in eval mode; `options` as in `from_pretrained`."""
    return _load("AutoModel", base, data_dir, **options)


def folder_of(base: str, data_dir: Path | str | None = None) -> Path | None:
    """The local folder that `base` names, as a path or as a folder's name beside the data sets."""
    candidates = [Path(base).expanduser(), *(place / base for place in places(data_dir))]
    return next((folder for folder in candidates if folder.is_dir()), None)


def gguf_file(folder: Path) -> str | None:
    """The GGUF file in a folder that holds no other form of the model, if there is one."""
    if (folder / "config.json").exists():
        return None
    found = sorted(path.name for path in folder.glob("*.gguf"))
    if len(found) > 1:
        raise UsageError(f"{folder} holds {len(found)} GGUF files, {', '.join(found)}; leave one there")
    return found[0] if found else None


def _load(kind: str, base: str, data_dir: Path | str | None, **options: Any) -> Any:
    folder = folder_of(base, data_dir)
    options["trust_remote_code"] = False  # a model that brings code is refused, and nobody is asked
    if folder is not None and (file := gguf_file(folder)) is not None:
        options["gguf_file"] = file
    for path in folder.iterdir() if folder is not None else ():
        if not (path.is_file() or path.is_dir() or not path.exists()):
            raise UsageError(f"cannot load {base!r}: {path} is neither a file nor a folder; remove it")
    with _library() as transformers:
        load = getattr(transformers, kind).from_pretrained
        if folder is None:  # a copy in the hub's cache needs no network, and stays what it was
            with suppress(OSError, ValueError, KeyError):
                return load(base, local_files_only=True, **options)
        try:
            return load(str(folder or base), **options)
        except ImportError as error:
            raise missing_extra(f"the model {base!r}", "lora", error) from None
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(
                f"cannot load {base!r}: {in_one_line(error)}; name a model of the hub that can be reached, or a "
                "local folder with config.json and weights, or with one GGUF file"
            ) from None


@contextmanager
def _library() -> Iterator[Any]:
    """The library `transformers`, without its progress bars meanwhile."""
    try:
        import transformers
    except ImportError as error:
        raise missing_extra("a pretrained model", "lora", error) from None
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        if shown:
            logging.enable_progress_bar()

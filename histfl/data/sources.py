"""The data sets by name: list, locate, fetch, load."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from histfl.data import cifar10, fashion_mnist, newsgroups, store
from histfl.data.download import download
from histfl.data.store import Source, TensorPair, TextPair
from histfl.errors import UsageError, did_you_mean
from histfl.factories import DATA, plugins

DATASETS: dict[str, Source] = {
    source.name: source
    for source in (fashion_mnist.MINI, fashion_mnist.SOURCE, cifar10.SOURCE, newsgroups.SOURCE)
}


def load(name: str, data_dir: Path | str | None = None) -> TensorPair:
    """(train, test) of the named data set, after its checksums have matched.

    It is looked for in `data_dir`, $HISTFL_DATA, the user's cache and the system's data sets.
    """
    source = _source(name)
    if source.load is None:
        raise UsageError(f"{name} is text; load it with histfl.data.load_text({name!r})")
    return source.load(_verified(source, data_dir))


def load_text(name: str, data_dir: Path | str | None = None, *, strip: Iterable[str] = ()) -> TextPair:
    """(train, test) of the named text data set; `strip` names parts to leave out.

    For 20newsgroups the parts are "headers", "footers" and "quotes", as scikit-learn removes them.
    """
    source = _source(name)
    if source.load_text is None:
        raise UsageError(f"{name} is not text; load it with histfl.data.load({name!r})")
    parts = frozenset([strip] if isinstance(strip, str) else strip)
    return source.load_text(_verified(source, data_dir), parts)


def locate(name: str, data_dir: Path | str | None = None) -> Path:
    """The folder in which the named data set lies; nothing is read or checked yet."""
    return store.locate(_source(name), data_dir)


def fetch(name: str, data_dir: Path | str | None = None, *, base_url: str | None = None) -> Path:
    """Downloads the named data set if need be; returns its folder, complete and checked."""
    return download(_source(name), data_dir, base_url=base_url)


def _verified(source: Source, data_dir: Path | str | None) -> Path:
    folder = store.locate(source, data_dir)
    store.verify(source, folder)
    return folder


def _source(name: str) -> Source:
    if name in DATASETS:
        return DATASETS[name]
    if (plugin := plugins(DATA).get(name)) is not None:
        raise UsageError(
            f"data set {name!r} is a plugin, {plugin.value}: a configuration names it; here, call that function"
        )
    hint = did_you_mean(name, DATASETS, f"known data sets: {', '.join(DATASETS)}")
    raise UsageError(f"unknown data set {name!r}; {hint}")

"""Texts as token ids, and where a pretrained model is looked for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from histfl.data import load_text, load_tokens
from histfl.data.dataset import TextData
from histfl.data.text import PADDING, folder_of, load_tokenizer, tokenise
from histfl.errors import UsageError

TEXTS = TextData(("red green blue", "", "green violet", "blue " * 9), torch.tensor([0, 1, 0, 1]), ("a", "b"))


@pytest.fixture
def words(tmp_path: Path) -> str:
    """A tokenizer of three words: 1 red, 2 green, 3 blue, 0 any other."""
    import tokenizers
    import transformers

    vocabulary = {word: number for number, word in enumerate(("?", "red", "green", "blue"))}
    known = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    known.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    folder = tmp_path / "words"
    transformers.PreTrainedTokenizerFast(tokenizer_object=known, unk_token="?").save_pretrained(folder)
    return str(folder)


def test_texts_are_cut_and_padded(words: str) -> None:
    data = tokenise(TEXTS, load_tokenizer(words), 4)
    assert data.inputs.dtype == torch.int64
    assert data.inputs.tolist() == [[1, 2, 3, -1], [-1] * 4, [2, 0, -1, -1], [3] * 4]
    assert data.targets is TEXTS.targets
    assert data.class_names == ("a", "b")
    assert PADDING == -1
    with pytest.raises(UsageError, match="max_length = 0"):
        tokenise(TEXTS, load_tokenizer(words), 0)


def test_a_base_is_found_beside_the_data_sets(
    words: str, private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder_of("words") is None
    assert folder_of("words", Path(words).parent) == Path(words)
    assert load_tokenizer("words", Path(words).parent)("blue red")["input_ids"] == [3, 1]
    monkeypatch.setenv("HISTFL_DATA", str(Path(words).parent))
    assert folder_of("words") == Path(words)
    assert load_tokenizer("words")("blue red")["input_ids"] == [3, 1]


def test_the_posts_as_tokens(full_data: Path, words: str) -> None:
    train, test = load_tokens("20newsgroups", tokenizer=words, max_length=8, strip=("headers",))
    assert train.inputs.shape == (11_314, 8)
    assert test.inputs.shape == (7_532, 8)
    texts, _ = load_text("20newsgroups", strip=("headers",))
    first = texts.texts[0].split()
    assert (train.inputs[0] != PADDING).sum() == min(8, len(first))
    assert torch.equal(train.targets, texts.targets)


def test_without_the_extra_the_install_line_is_said(words: str) -> None:
    """A real interpreter in which the library cannot be imported."""
    script = (
        "import sys; sys.modules['transformers'] = None\n"
        "import histfl.models\n"
        "from histfl.data.text import load_tokenizer\n"
        "from histfl.errors import UsageError\n"
        f"try: load_tokenizer({words!r})\n"
        "except UsageError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("a pretrained model needs the extra lora (")
    assert done.stdout.endswith("; install it with: pip install 'histfl[lora]'\n")


def test_a_copy_in_the_hubs_cache_needs_no_network(words: str, tmp_path: Path) -> None:
    """A real interpreter, whose hub nobody answers for."""
    copy = tmp_path / "hub" / "models--someone--words"
    shutil.copytree(words, copy / "snapshots" / "abc")
    (copy / "snapshots" / "abc" / "config.json").write_text('{"model_type": "gpt2"}')
    (copy / "refs").mkdir()
    (copy / "refs" / "main").write_text("abc")
    script = (
        "from histfl.data.text import load_tokenizer\n"
        "print(load_tokenizer('someone/words')('blue red')['input_ids'])"
    )
    closed = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **closed},
    )
    assert done.stdout == "[3, 1]\n"
    assert "Retrying" not in done.stderr

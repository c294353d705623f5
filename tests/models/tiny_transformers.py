"""Randomly initialised transformers of a few thousand parameters, and a tokenizer of whole words."""

from pathlib import Path
from typing import Any

import torch

from histfl.models.lora import LoraClassifier, add_lora

VOCABULARY, LONGEST = 40, 16
KINDS = ("gpt2", "llama", "bert")


def transformer(kind: str) -> Any:
    """The smallest model of the kind that has everything: two layers, several heads, dropout where it has it."""
    import transformers

    size = {"vocab_size": VOCABULARY, "attn_implementation": "eager"}
    if kind == "gpt2":
        config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=12, n_positions=LONGEST, **size)
        return transformers.GPT2Model(config)
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 20}
    sizes |= {"max_position_embeddings": LONGEST, **size}
    if kind == "llama":
        return transformers.LlamaModel(transformers.LlamaConfig(num_key_value_heads=2, **sizes))
    return transformers.BertModel(transformers.BertConfig(**sizes))


def classifier(kind: str, *, rank: int = 4, **options: Any) -> LoraClassifier:
    """Three classes; B is no longer zero, so that every pair has a say."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = LoraClassifier(add_lora(transformer(kind), rank=rank, alpha=8.0), 3, None, **options)
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                torch.nn.init.normal_(parameter, std=0.3)
    return model.double()


def tokens(samples: int, length: int = 7, seed: int = 1) -> torch.Tensor:
    """Token ids [sample, length], of one to `length` tokens and padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (samples, length), generator=generator)
    lengths = torch.randint(1, length + 1, (samples, 1), generator=generator)
    return ids.where(torch.arange(length) < lengths, -1)


def save(kind: str, folder: Path, words: list[str]) -> None:
    """The model and a tokenizer of `words` in `folder`, as transformers writes them."""
    import tokenizers
    import transformers

    vocabulary = {word: number for number, word in enumerate(["?", *words])}
    known = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    known.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=known, unk_token="?").save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        transformer(kind).save_pretrained(folder)

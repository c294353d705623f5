"""A small language model from a random start: what letter follows, learnt from a text that is cut among the clients.

python examples/language_model.py [rounds] [scale]
"""

import sys

import torch
from torch import nn

import histfl

# The Gettysburg Address (Abraham Lincoln, 1863; in the public domain).
TEXT = """Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in
Liberty, and dedicated to the proposition that all men are created equal. Now we are engaged in a great civil war,
testing whether that nation, or any nation so conceived and so dedicated, can long endure. We are met on a great
battle-field of that war. We have come to dedicate a portion of that field, as a final resting place for those who here
gave their lives that that nation might live. It is altogether fitting and proper that we should do this. But, in a
larger sense, we can not dedicate -- we can not consecrate -- we can not hallow -- this ground. The brave men, living
and dead, who struggled here, have consecrated it, far above our poor power to add or detract. The world will little
note, nor long remember what we say here, but it can never forget what they did here. It is for us the living, rather,
to be dedicated here to the unfinished work which they who fought here have thus far so nobly advanced. It is rather
for us to be here dedicated to the great task remaining before us -- that from these honored dead we take increased
devotion to that cause for which they gave the last full measure of devotion -- that we here highly resolve that these
dead shall not have died in vain -- that this nation, under God, shall have a new birth of freedom -- and that
government of the people, by the people, for the people, shall not perish from the earth."""
LETTERS = "".join(sorted(set(TEXT.lower().replace("\n", " "))))
PLACES, CONTEXT = 24, 3  # of a sample, and letters that a place sees: its own and those before it


class LetterModel(nn.Module):
    """Scores [sample, place, letter] of the letter after each place, from an embedding of the last few."""

    def __init__(self, width: int = 16, hidden: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), width)
        self.before = nn.Conv1d(width, hidden, CONTEXT)
        self.scores = nn.Linear(hidden, len(LETTERS))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        seen = nn.functional.pad(self.embedding(ids).transpose(1, 2), (CONTEXT - 1, 0))
        return self.scores(torch.relu(self.before(seen)).transpose(1, 2))


def windows(text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [sample, place], and those that follow."""
    ids = torch.tensor([LETTERS.index(letter) for letter in text])
    cut = ids.unfold(0, PLACES + 1, 2)
    return cut[:, :-1], cut[:, 1:]


def main(rounds: int, scale: float) -> None:
    torch.manual_seed(1)
    text = TEXT.lower().replace("\n", " ")
    held_out = len(text) * 9 // 10
    run = histfl.train(
        LetterModel(),
        windows(text[:held_out]),
        windows(text[held_out:]),
        network=histfl.Network.uniform(cells=2, clients_per_cell=3),
        method="hist",
        scale=scale,  # at 0 the sum of the cells' submodels is too sure of itself
        objective="language-modelling",
        targets=[14, 11],
        split="iid",
        local_steps=10,
        edge_rounds=2,
        batch_size=16,
        learning_rate=0.2,
        rounds=rounds,
        on_round=lambda record: print(
            f"round {record['round']}: perplexity {record['perplexity']:.2f}, accuracy {record['accuracy']:.3f}"
        ),
    )
    print(f"a guess among {len(LETTERS)} letters has perplexity {len(LETTERS)}")
    for target, reached in run.summary["to_target"].items():
        print(f"to a perplexity of {target}:", f"round {reached['round']}" if reached else "not reached")


if __name__ == "__main__":
    given = sys.argv[1:] + ["12", "1"][len(sys.argv) - 1 :]
    main(int(given[0]), float(given[1]))

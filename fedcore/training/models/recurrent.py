"""The character model of McMahan et al. (2017)."""

from __future__ import annotations

from torch import Tensor, nn


class CharLSTM(nn.Module):
    """Predicts, at every position of a text, the character that comes next.

    Input int64 [n, length], output logits [n, length, vocabulary]. The state starts at zero with every row.
    """

    def __init__(self, vocabulary: int, *, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=layers, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        """Logits [n, length, vocabulary] of the character after each of `characters` [n, length]."""
        states, _ = self.lstm(self.embedding(characters))
        logits: Tensor = self.output(states)
        return logits


def char_lstm(vocabulary: int, *, embedding: int = 8, hidden: int = 256, layers: int = 2) -> CharLSTM:
    """The LSTM of McMahan et al. (2017), section 3: 798,720 + 265 vocabulary parameters.

    Characters become 8 numbers each, two layers of 256 units follow, then a softmax over the vocabulary. The paper
    does not state its vocabulary. Its 866,578 parameters are those of 258 symbols (the byte values and two more) and
    of cells with one bias a gate and peephole connections; torch's cells have two biases and no peepholes, which
    makes 867,090 for 258 symbols.
    """
    return CharLSTM(vocabulary, embedding=embedding, hidden=hidden, layers=layers)

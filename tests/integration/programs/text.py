"""Sequences and texts: recurrent networks, transformers, models of Hugging Face as they are."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader

from fedcore import OptimizerConfig, supervised_app
from fedcore.training.losses import model_loss
from tests.integration.programs.program import Program, choices, drawn, loop
from tests.integration.programs.tables import SGD, both, made
from tests.support.several_tensors import Listed

LENGTHS = choices(31, 6, 10) + 2
TEXTS = [choices(40 + n, 19, int(length)) + 1 for n, length in enumerate(LENGTHS)]
KINDS = choices(32, 3, 10)


def padded(rows: list[Any]) -> Any:
    """Texts of different lengths, with a mask and labels."""
    ids = pad_sequence([text for text, _ in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.stack([kind for _, kind in rows])}


def texts(size: int = 4) -> DataLoader[Any]:
    return DataLoader(Listed(list(zip(TEXTS, KINDS, strict=True))), batch_size=size, collate_fn=padded)


def own_classes(name: str, build: Any) -> Program:
    """A model that takes ids and mask, on padded texts.

    By SGD: Adam makes steps of full size of gradients that are rounding alone, as those of keys' biases in attention.
    """
    model, data = made(build), texts()

    def bare() -> nn.Module:
        own = model()
        each = lambda m, b: F.cross_entropy(m(b["input_ids"], b["attention_mask"]), b["labels"])  # noqa: E731
        return loop(own, data, each, torch.optim.SGD(own.parameters(), lr=0.1))

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(data))  # noqa: E731
    return Program(name=name, app=app, bare=bare)


class Gru(nn.Module):
    """Packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gru, self.head = nn.Embedding(21, 6), nn.GRU(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        lengths = attention_mask.sum(1).cpu()
        packed = pack_padded_sequence(self.words(input_ids), lengths, batch_first=True, enforce_sorted=False)
        _, last = self.gru(packed)
        return self.head(last[0])


class Encoder(nn.Module):
    """A transformer encoder over padded texts."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(21, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.layers(self.words(input_ids), src_key_padding_mask=attention_mask == 0)
        mask = attention_mask.unsqueeze(-1)
        return self.head((hidden * mask).sum(1) / mask.sum(1))


def gru() -> Program:
    return own_classes("GRU, packed sequences", Gru)


def encoder() -> Program:
    return own_classes("transformer encoder", Encoder)


class Lstm(nn.Module):
    """Output and hidden state, as torch's LSTM has them."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 6, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        return self.lstm(x)


def lstm() -> Program:
    """A forecast of the next value, by a loss that takes its part of (output, hidden)."""

    def loss(output: Any, y: Tensor) -> Tensor:
        values, _ = output
        return ((values[:, -1] - y) ** 2).mean(1)

    data, model = Listed(list(zip(drawn(51, 9, 5, 3), drawn(52, 9, 6), strict=True))), made(Lstm)

    def bare() -> nn.Module:
        own = model()
        each = lambda m, b: loss(m(b[0]), b[1]).mean()  # noqa: E731
        return loop(own, DataLoader(data, batch_size=9), each, torch.optim.SGD(own.parameters(), lr=0.1), epochs=3)

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(data), loss=loss)  # noqa: E731
    return Program(name="LSTM, (output, hidden)", app=app, bare=bare, config={"local-epochs": 3})


class Tied(nn.Module):
    """Next words, with one tensor for embedding and output."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn, self.out = nn.Embedding(21, 8), nn.RNN(8, 8, batch_first=True), nn.Linear(8, 21)
        self.out.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.rnn(self.words(ids))[0])


def tied() -> Program:
    ids = choices(53, 21, 9, 6)
    data, model = DataLoader(Listed(list(zip(ids[:, :-1], ids[:, 1:], strict=True))), batch_size=4), made(Tied)

    def bare() -> nn.Module:
        own = model()
        each = lambda m, b: F.cross_entropy(m(b[0]).flatten(0, 1), b[1].flatten())  # noqa: E731
        return loop(own, data, each, torch.optim.SGD(own.parameters(), lr=0.5))

    optimizer = lambda config: OptimizerConfig(lr=0.5)  # noqa: E731
    app = lambda: supervised_app(model=model, optimizer=optimizer, data=both(data))  # noqa: E731
    return Program(name="tied weights", app=app, bare=bare)


# --- Hugging Face -----------------------------------------------------------------------------------------------------


def tiny_bert() -> nn.Module:
    import transformers

    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=21,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            num_labels=3,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def tiny_gpt() -> nn.Module:
    import transformers

    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=21,
            n_embd=8,
            n_layer=1,
            n_head=2,
            n_positions=16,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def language() -> DataLoader[Any]:
    """Each token is the label of the one before it; padding is none."""

    def collate(rows: list[Any]) -> Any:
        batch = padded(rows)
        return {**batch, "labels": batch["input_ids"].masked_fill(batch["input_ids"] == 0, -100)}

    return DataLoader(Listed(list(zip(TEXTS, KINDS, strict=True))), batch_size=4, collate_fn=collate)


def bert() -> Program:
    """The logits of an unwrapped model, by the usual loss."""
    model, data = made(tiny_bert), texts()

    def bare() -> nn.Module:
        own = model()
        return loop(own, data, lambda m, b: m(**b).loss, torch.optim.SGD(own.parameters(), lr=0.1))

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(data))  # noqa: E731
    return Program(name="BERT, unwrapped", app=app, bare=bare)


def gpt() -> Program:
    """The loss that the model computes itself, a mean over all tokens of a batch; texts of different lengths."""
    model, data = made(tiny_gpt), language()

    def bare() -> nn.Module:
        own = model()
        return loop(own, data, lambda m, b: m(**b).loss, torch.optim.SGD(own.parameters(), lr=0.1))

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(data), loss=model_loss)  # noqa: E731
    return Program(name="GPT, its own loss", app=app, bare=bare)


def lora() -> Program:
    """An adapter by PEFT; only its matrices are handed over."""

    def build() -> nn.Module:
        import peft

        config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True)
        with warnings.catch_warnings():  # peft 0.21 reads a property that transformers 5.23 has renamed
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            return peft.get_peft_model(tiny_gpt(), config)

    model, data = made(build), language()

    def bare() -> nn.Module:
        own = model()
        trained = [p for p in own.parameters() if p.requires_grad]
        return loop(own, data, lambda m, b: m(**b).loss, torch.optim.SGD(trained, lr=0.1))

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(data), loss=model_loss, adapter=True)  # noqa: E731
    return Program(name="LoRA by PEFT", app=app, bare=bare)


PROGRAMS = (gru, encoder, lstm, tied, bert, gpt, lora)

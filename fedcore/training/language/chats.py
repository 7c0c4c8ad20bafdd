"""Conversations as training examples: read, rendered by the tokenizer's chat template, masked and packed.

Only what the assistant says is learnt: the target of any other token is IGNORED, so that the loss and the perplexity
are those of the assistant's tokens. Several conversations may share one row of tokens (packing). Their positions begin
at 0 again, which is what transformers divides the attention by, so that none sees another; `CausalLM` tries that on the
model before it trains on such a row.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedcore.errors import ConfigurationError, DataError
from fedcore.training.huggingface import CausalLM
from fedcore.training.losses import IGNORED

Conversation: TypeAlias = list[dict[str, str]]
"""Messages with `role` and `content`, in order."""

ASSISTANT: Final = "assistant"
_SPEAKERS: Final = {"human": "user", "gpt": ASSISTANT}
_MARKED: Final = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
"""What a template has around the assistant's words if it marks them."""
_TEST_TOKENS: Final = 4096
"""Of a test, at a time: their scores over a vocabulary of 128,000 take 2 GiB."""


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a file: JSON lines, or one JSON list.

    A record has `messages`; or `prompt` and `completion`; or `instruction`, maybe `input`, and `output` or `response`
    (Alpaca); or `conversations` of `from` and `value` (ShareGPT). Raises DataError, check "no-chat", that names the
    record that is none of these.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("["):
            records = list(enumerate(json.loads(text), start=1))
        else:
            lines = enumerate(text.split("\n"), start=1)
            records = [(number, json.loads(line)) for number, line in lines if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    except ValueError as error:
        raise DataError(f"{path} holds no JSON lines: {error}", check="no-json") from None
    return [_conversation(record, f"{path}, record {number}") for number, record in records]


def _conversation(record: Any, where: str) -> Conversation:
    messages = _messages(record) if isinstance(record, Mapping) else None
    if messages is None:
        named = f"has {', '.join(map(repr, record))}" if isinstance(record, Mapping) else "is no object"
        raise DataError(
            f"{where} {named}: give 'messages' with 'role' and 'content', 'prompt' and 'completion', or 'instruction' "
            "and 'output'",
            check="no-chat",
        )
    if not all(isinstance(one.get("role"), str) and isinstance(one.get("content"), str) for one in messages):
        raise DataError(f"{where}: each message needs a 'role' and a 'content', both texts", check="no-chat")
    if not any(one["role"] == ASSISTANT for one in messages):
        raise DataError(f"{where} has no message of the role 'assistant', from which to learn", check="no-chat")
    return messages


def _messages(record: Mapping[str, Any]) -> Conversation | None:
    if "messages" in record:
        return _listed(record["messages"])
    if "conversations" in record:
        turns = _listed(record["conversations"]) or []
        return [{"role": _SPEAKERS.get(one.get("from", ""), one.get("from", "")), "content": one["value"]}
                for one in turns if "value" in one] or None  # fmt: skip
    if "prompt" in record and "completion" in record:
        before, after = record["prompt"], record["completion"]
        if isinstance(before, str):
            return _turn(before, after)
        first, second = _listed(before), _listed(after)
        return None if first is None or second is None else first + second
    answered = record.get("output", record.get("response"))
    if "instruction" in record and answered is not None:
        return _turn("\n\n".join(filter(None, (record["instruction"], record.get("input")))), answered)
    return None


def _turn(question: str, reply: Any) -> Conversation:
    return [{"role": "user", "content": question}, {"role": ASSISTANT, "content": reply}]


def _listed(value: Any) -> Conversation | None:
    return [dict(one) for one in value] if isinstance(value, list) and all(isinstance(m, dict) for m in value) else None


def encode_chat(tokenizer: Any, conversation: Conversation) -> list[tuple[list[int], list[bool]]]:
    """Tokens of a conversation, and which of them the assistant says, its end of turn among them.

    A template with `{% generation %}` says it itself. Of any other, an answer is what a conversation up to its end has
    in addition to one up to its beginning. If a template writes earlier turns differently once later ones follow (it
    leaves out the reasoning, say), each answer is an example of its own, with what the model sees when it gives it.
    Raises DataError, check "chat-template", if a template does not allow that either.
    """
    if not tokenizer.is_fast:
        raise ConfigurationError(
            f"{type(tokenizer).__name__} does not say which token is which part of the text: use a fast tokenizer",
            check="slow-tokenizer",
        )
    if _MARKED.search(str(tokenizer.chat_template)):
        marked = tokenizer.apply_chat_template(conversation, return_dict=True, return_assistant_tokens_mask=True)
        return [(list(marked["input_ids"]), [bool(one) for one in marked["assistant_masks"]])]
    ends = [number for number, one in enumerate(conversation, start=1) if one["role"] == ASSISTANT]
    text = _rendered(tokenizer, conversation)
    spans = [_span(tokenizer, conversation[:end], text) for end in ends]
    if all(span is not None for span in spans):
        return [_masked(tokenizer, text, [span for span in spans if span is not None])]
    examples = []
    for end in ends:
        text = _rendered(tokenizer, conversation[:end])
        span = _span(tokenizer, conversation[:end], text)
        if span is None:
            raise DataError(
                "the tokenizer's chat template does not end a prompt where the answer begins; mark the answers in it "
                "with {% generation %} and {% endgeneration %}",
                check="chat-template",
            )
        examples.append(_masked(tokenizer, text, [span]))
    return examples


def _rendered(tokenizer: Any, conversation: Conversation, *, prompt: bool = False) -> str:
    return str(tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=prompt))


def _span(tokenizer: Any, conversation: Conversation, text: str) -> tuple[int, int] | None:
    """Where the last message, an answer, stands in a text that begins with the conversation; None if it does not."""
    before = _rendered(tokenizer, conversation[:-1], prompt=True)
    until = _rendered(tokenizer, conversation)
    return (len(before), len(until)) if until.startswith(before) and text.startswith(until) else None


def _masked(tokenizer: Any, text: str, spans: Sequence[tuple[int, int]]) -> tuple[list[int], list[bool]]:
    tokens = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    starts = [start for start, _ in tokens["offset_mapping"]]
    return list(tokens["input_ids"]), [any(first <= start < end for first, end in spans) for start in starts]


class ChatDataset(Dataset[dict[str, Tensor]]):
    """Rows of at most `window` tokens for `supervised_app`, each with its positions and the targets of its tokens.

    A longer conversation is cut at its end; one without an answer in what is left is left out, and counted in
    `left_out`.

    Args:
        conversations: as `read_conversations` gives them.
        packing: as many conversations in a row as fit, the longest first and each in the fullest row with room for it.
    """

    def __init__(
        self, conversations: Sequence[Conversation], tokenizer: Any, *, window: int, packing: bool = True
    ) -> None:
        if window < 2:
            raise ConfigurationError(f"a window of {window} tokens has no token that follows another")
        encoded = [one for conversation in conversations for one in encode_chat(tokenizer, conversation)]
        examples = [_example(ids[:window], mask[:window]) for ids, mask in encoded]
        self._examples = [one for one in examples if bool((one["labels"] != IGNORED).any())]
        self.left_out = len(examples) - len(self._examples)
        if examples and not self._examples:
            raise DataError(
                f"none of {len(examples)} conversations has an answer in its first {window} tokens: raise the window",
                check="window-too-short",
            )
        lengths = [len(one["tokens"]) for one in self._examples]
        self._rows = _packed(lengths, window) if packing else [[number] for number in range(len(lengths))]
        self._padding = {"tokens": _padding(tokenizer), "labels": IGNORED}
        self.test_rows = max(1, _TEST_TOKENS // window)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        """`tokens`, `positions` and `labels`, int64 [length]; a label is the token that follows."""
        parts = [self._examples[number] for number in self._rows[row]]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def collate_fn(self, rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """The rows, int64 [n, longest]; what fills them up comes after all else, and has no target."""
        longest = max(len(row["tokens"]) for row in rows)
        batch = {name: torch.full((len(rows), longest), value) for name, value in self._padding.items()}
        batch["positions"] = torch.zeros(len(rows), longest, dtype=torch.int64)
        for number, row in enumerate(rows):
            length = len(row["tokens"])
            for name, tensor in row.items():
                batch[name][number, :length] = tensor
            batch["positions"][number, length:] = row["positions"][-1] + 1 + torch.arange(longest - length)
        return batch


def _example(ids: list[int], mask: list[bool]) -> dict[str, Tensor]:
    tokens = torch.tensor(ids, dtype=torch.int64)
    labels = torch.full_like(tokens, IGNORED)
    labels[:-1] = torch.where(torch.tensor(mask, dtype=torch.bool)[1:], tokens[1:], IGNORED)
    return {"tokens": tokens, "positions": torch.arange(len(ids)), "labels": labels}


def _packed(lengths: Sequence[int], window: int) -> list[list[int]]:
    """Numbers of the examples of each row (best fit decreasing)."""
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # room in a row, and the row; sorted
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        first = bisect.bisect_left(free, (lengths[number], -1))
        if first < len(free):
            room, row = free.pop(first)
            rows[row].append(number)
        else:
            room, row = window, len(rows)
            rows.append([number])
        bisect.insort(free, (room - lengths[number], row))
    return rows


def _padding(tokenizer: Any) -> int:
    number = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return int(number or 0)


@torch.no_grad()
def answer(model: CausalLM, tokenizer: Any, conversation: Conversation, *, most: int = 128) -> str:
    """What the model says next, at most `most` tokens and always the likeliest; special tokens are left out."""
    prompt = tokenizer.apply_chat_template(
        conversation, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    ).to(next(model.parameters()).device)
    transformer: Any = model.transformer
    tokens = transformer.generate(**prompt, max_new_tokens=most, do_sample=False, pad_token_id=_padding(tokenizer))
    return str(tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)).strip()

"""Instruction tuning of language models: conversations as training examples, and the adapters that are trained on them.

An optional extra, as `fedcore.training.huggingface`, which this builds on: pip install 'fedcore[huggingface]'.
"""

from fedcore.training.language.adapters import save_peft, with_adapter
from fedcore.training.language.bases import byte_tokenizer, chat_tokenizer, load_base
from fedcore.training.language.chats import ChatDataset, Conversation, answer, encode_chat, read_conversations

__all__ = [
    "ChatDataset",
    "Conversation",
    "answer",
    "byte_tokenizer",
    "chat_tokenizer",
    "encode_chat",
    "load_base",
    "read_conversations",
    "save_peft",
    "with_adapter",
]

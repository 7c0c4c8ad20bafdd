"""Replies as JSON, with their models and records as files in a folder, and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from fedcore.run.exchange import ExchangeReply
from fedcore.run.plain import PlainReply
from fedcore.state import ModelState
from fedcore.wire.uploads import ReplyError

SavedReplies: TypeAlias = list[dict[str, Any]]


def save_sums(replies: Sequence[ExchangeReply], folder: Path) -> SavedReplies:
    """Replies of a secure exchange."""
    for number, reply in enumerate(replies):
        if (state := reply.model()) is not None:
            state.save(_model(folder, number))
    return [{**_figures(one), "state": one.state is not None} for one in replies]


def load_sums(saved: SavedReplies, folder: Path) -> list[ExchangeReply]:
    """The inverse of `save_sums`; models are mapped."""
    return [
        ExchangeReply(
            node=one["node"],
            state=ModelState.open(_model(folder, number)) if one["state"] else None,
            examples=one["examples"],
            metrics=one["metrics"],
        )
        for number, one in enumerate(saved)
    ]


def save_replies(replies: Sequence[PlainReply], folder: Path) -> SavedReplies:
    """Replies of a plain exchange."""
    for reply in replies:
        if reply.content is not None:
            reply.save(_content(folder, reply.node))
    return [
        {
            **_figures(one),
            "error": one.error.model_dump(mode="json") if one.error is not None else None,
            "content": one.content is not None,
        }
        for one in replies
    ]


def load_replies(saved: SavedReplies, folder: Path) -> list[PlainReply]:
    """The inverse of `save_replies`; records stay files."""
    return [
        PlainReply(
            node=one["node"],
            content=_content(folder, one["node"]) if one["content"] else None,
            error=ReplyError.model_validate(one["error"]) if one["error"] else None,
            examples=one["examples"],
            metrics=one["metrics"],
        )
        for one in saved
    ]


def _figures(reply: ExchangeReply | PlainReply) -> dict[str, Any]:
    return {"node": reply.node, "examples": reply.examples, "metrics": dict(reply.metrics)}


def _model(folder: Path, number: int) -> Path:
    return folder / f"{number}.safetensors"


def _content(folder: Path, node: int) -> Path:
    return folder / f"{node}.reply"

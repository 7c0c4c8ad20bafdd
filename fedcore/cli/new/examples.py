"""Example data for apps whose author has none at hand yet."""

from __future__ import annotations

import io
import itertools
import json
from typing import Final

import numpy as np

_SEED: Final = 7
_PATIENTS: Final = 600


def breast_cancer_csv() -> str:
    """569 samples of 30 measurements with a diagnosis: Wolberg, Street and Mangasarian (1993), UCI, in scikit-learn."""
    from sklearn.datasets import load_breast_cancer

    dataset = load_breast_cancer(as_frame=True)
    table = dataset.frame.rename(columns={"target": "diagnosis"})
    table["diagnosis"] = [str(dataset.target_names[index]) for index in table["diagnosis"]]
    return str(table.to_csv(index=False))


def patients_csv() -> str:
    """600 made-up patients: four columns that matter more or less, the years they were followed, and whether they died.

    Times are exponential with the log of the risk linear in the columns, cut off at random (Cox 1972).
    """
    import pandas

    rng = np.random.default_rng(_SEED)
    age, marker = rng.normal(62, 11, _PATIENTS).clip(25, 95), rng.lognormal(1.0, 0.5, _PATIENTS)
    stage, smoker = rng.choice(["I", "II", "III"], _PATIENTS, p=[0.4, 0.35, 0.25]), rng.random(_PATIENTS) < 0.3
    risk = 0.04 * (age - 62) + 0.5 * np.log(marker) + 0.8 * (stage == "III") + 0.3 * smoker
    death, times = rng.exponential(6 * np.exp(-risk)), rng.exponential(5, _PATIENTS)
    table = pandas.DataFrame(
        {
            "age": age.round(1), "marker": marker.round(2), "stage": stage, "smoker": smoker.astype(int),
            "years": (np.minimum(death, times) + 0.01).round(2), "died": (death <= times).astype(int),
        }
    )  # fmt: skip
    table.loc[rng.random(_PATIENTS) < 0.05, "marker"] = np.nan
    return str(table.to_csv(index=False))


_SUBJECTS: Final = {
    "appointment": (
        ("could I move", "please cancel", "I would like to book", "when is", "can you confirm", "I have to postpone"),
        ("my appointment", "the visit", "the check-up", "my next session", "the scan"),
        ("on Monday", "next week", "for the morning", "in the afternoon", "before the holidays"),
    ),
    "invoice": (
        ("I was charged twice for", "please send a copy of", "I do not understand", "I have paid", "who pays for"),
        ("the invoice", "the last bill", "the amount on the statement", "my payment", "the costs of the treatment"),
        ("of March", "from last month", "by card", "although I am insured", "and need a receipt"),
    ),
    "complaint": (
        ("I waited two hours because of", "nobody apologised for", "I am unhappy with", "please look into"),
        ("the rude answer", "the noise on the ward", "the cold food", "the long queue", "the lost results"),
        ("at the front desk", "during my stay", "in the waiting room", "on the phone", "again"),
    ),
}


_REPLIES: Final = {
    "appointment": "Thank you. The desk will confirm your appointment today.",
    "invoice": "Thank you. The accounts office will look at your invoice and write to you.",
    "complaint": "I am sorry to hear this. The ward manager will call you.",
}


def chats() -> str:
    """The 300 messages, each with a reply to its subject: JSON lines with `messages`."""
    lines = (line.rpartition(",") for line in messages().splitlines()[1:])
    turns = ([("user", text), ("assistant", _REPLIES[label])] for text, _, label in lines)
    records = ({"messages": [{"role": role, "content": content} for role, content in chat]} for chat in turns)
    return "".join(f"{json.dumps(record)}\n" for record in records)


def messages(*, labels: bool = True) -> str:
    """300 made-up messages to a hospital, 100 of each subject, as CSV with columns text and label; else one a line."""
    rng = np.random.default_rng(_SEED)
    chosen = []
    for label, parts in _SUBJECTS.items():
        every = [" ".join(words) for words in itertools.product(*parts)]
        chosen += [(every[row], label) for row in rng.permutation(len(every))[:100]]
    mixed = [chosen[row] for row in rng.permutation(len(chosen))]
    if not labels:
        return "".join(f"{text}.\n" for text, _ in mixed)
    file = io.StringIO()
    file.write("text,label\n")
    file.writelines(f"{text},{label}\n" for text, label in mixed)
    return file.getvalue()

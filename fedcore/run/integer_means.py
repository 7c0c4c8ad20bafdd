"""What an operator hears of integer and bool tensors whose mean over the clients is no whole number.

Flower's averages make float64 of such a tensor; here it keeps its dtype, as `load_state_dict` and the next round need
it, and gets the nearest whole number. A mean that is one comes back exactly, so counters that all clients advance alike
stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence

_WIDTH = 100
"""Characters of names in the line; one name is in it however long it is."""


def rounded_line(tensors: Sequence[str]) -> str:
    """A warning that names as many of the tensors as fit, and counts the others; empty if there are none."""
    if not tensors:
        return ""
    names = [repr(tensors[0])]
    for name in tensors[1:]:
        if len(", ".join([*names, repr(name)])) > _WIDTH:
            break
        names.append(repr(name))
    others = len(tensors) - len(names)
    which = ", ".join(names) + (f" and {others} more" if others else "")
    return (
        f"the means of {which} are rounded to whole numbers, since integer and bool tensors keep their dtypes. If the "
        "fractions matter, let the app send them as float32 (tensor.float()); counts of all clients add up exactly in "
        "a query"
    )

"""What is set aside stays out of the collector's way; what comes later does not."""

import gc
import weakref

from fedcore.system.memory import set_aside


class _Knot:
    def __init__(self) -> None:
        self.itself = self


def test_what_is_there_is_set_aside() -> None:
    kept = _Knot()
    set_aside()
    assert not any(one is kept for one in gc.get_objects())


def test_garbage_before_is_collected_and_not_kept() -> None:
    lost = weakref.ref(_Knot())
    set_aside()
    assert lost() is None


def test_garbage_after_is_still_collected() -> None:
    set_aside()
    lost = weakref.ref(_Knot())
    gc.collect()
    assert lost() is None

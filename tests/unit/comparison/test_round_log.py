"""What workers report, put together."""

from fedcore.comparison.modes.baseline import RoundLog
from fedcore.comparison.workers.training import RoundDone


def log_of(*reports: RoundDone) -> RoundLog:
    """One round of as many workers."""
    log = RoundLog(names=tuple(f"client-{i + 1}" for i in range(len(reports))))
    for name, report in zip(log.names, reports, strict=True):
        log.add(name, report)
    assert list(log.close_rounds()) == [1]
    return log


def done(examples: int, loss: float | None, *, counted: bool = True) -> RoundDone:
    return RoundDone(round=1, examples=examples, steps=1, loss=loss, seconds=1.0, measured=counted)


def test_the_training_loss_is_a_mean_over_the_examples() -> None:
    log = log_of(done(2, 6.0), done(4, 6.0))
    assert log.event(1).metrics == {"train_loss": 2.0}
    assert [point.samples for point in log.curve([])] == [0, 6]


def test_a_training_loss_that_nobody_reported_is_not_zero() -> None:
    assert log_of(done(4, None)).event(1).metrics == {}
    assert log_of(done(4, 0.0)).event(1).metrics == {"train_loss": 0.0}


def test_what_an_app_says_of_itself_is_not_counted_as_examples() -> None:
    log = log_of(done(4000, 1.0, counted=False))
    assert [point.samples for point in log.curve([])] == [0, None]
    assert log.steps() == {}
    assert log.event(1).examples == 4000

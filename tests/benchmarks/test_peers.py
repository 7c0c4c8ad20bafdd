"""The relay, the ruler and the report of the comparison with other frameworks, without any framework."""

import contextlib
import socket
import threading

import pytest

from benchmarks.peers import FLOWER, OURS, Cell, measure, report
from benchmarks.peers_arms import PLAIN, SECURE, Job, Measured, WorkLog, measured
from benchmarks.peers_relay import CountingRelay, Watch, proportional_bytes
from fedcore.errors import EnvironmentFailure

JOB = Job(kind=PLAIN, parameters=1000, rounds=3, clients=2)


class FixedWatch(Watch):
    """Ten bytes up and twenty down a second."""

    def bytes_up(self, start, end):
        return round(10 * (end - start))

    def bytes_down(self):
        return 600


def watch():
    return FixedWatch(server=0, client=0, relay=CountingRelay(1, 2), server_peak=5, client_peak=3)


def run(*seconds):
    return Measured(seconds=seconds, up=100.0, down=200.0, server_peak=1 << 20, client_peak=1 << 20)


def echo_twice(listener):
    """Answer one connection with all that it sent, twice, once it has sent all."""
    connection, _ = listener.accept()
    with connection:
        sent = b"".join(iter(lambda: connection.recv(65536), b""))
        connection.sendall(sent + sent)


def test_the_relay_hands_everything_on_and_counts_it():
    sent = bytes(range(256)) * 20_000
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=echo_twice, args=(listener,))
        server.start()
        with (
            CountingRelay(listener.getsockname()[1]) as relay,
            socket.create_connection(("127.0.0.1", relay.port)) as client,
        ):
            sender = threading.Thread(target=lambda: (client.sendall(sent), client.shutdown(socket.SHUT_WR)))
            sender.start()
            answer = b"".join(iter(lambda: client.recv(65536), b""))
            sender.join()
        server.join()
    assert answer == sent + sent
    assert (relay.up, relay.down) == (len(sent), 2 * len(sent))


def test_the_relay_closes_what_finds_no_server_and_ends_with_its_block():
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with CountingRelay(port) as relay, socket.create_connection(("127.0.0.1", relay.port)) as client:
        assert client.recv(1) == b""
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", relay.port)) as client:
        pytest.fail("the relay still listens")


def test_a_round_goes_from_the_median_beginning_to_the_next():
    found = measured(JOB, [[10.0, 20.0, 31.0], [12.0, 22.0, 33.0]], watch())
    assert found.seconds == pytest.approx((10.0, 11.0))
    # 21 seconds, two rounds, two clients; and three models came down.
    assert (found.up, found.down) == (pytest.approx(210 / 4), pytest.approx(600 / 6))
    assert measured(JOB, [[10.0, 20.0, 31.0]] * 2, watch(), before=1).down == pytest.approx(600 / 8)


@pytest.mark.parametrize("begins", [[[1.0, 2.0, 3.0]], [[1.0, 2.0, 3.0], [1.0, 2.0]], [[], []]])
def test_a_client_that_missed_a_round_leaves_nothing_measured(begins):
    with pytest.raises(EnvironmentFailure, match=r"\b3\b.*\b2\b"):
        measured(JOB, begins, watch())


def test_a_log_tells_when_work_began_since_it_was_first_read(tmp_path):
    log = tmp_path / "client.log"
    log.write_text("local work begins at 5.250\n", encoding="utf-8")
    work = WorkLog([log])
    with log.open("a", encoding="utf-8") as more:
        more.write("INFO something\n[rank 0] local work begins at 7.500\n")
    assert work.since() == [[7.5]]


def test_memory_counts_this_process():
    assert proportional_bytes(threading.get_native_id()) > 1 << 20


def test_a_figure_needs_both_sides():
    cells = {
        (OURS, PLAIN, 10**6): Cell(parameters=10**6, runs=[run(1.0, 2.0, 3.0)]),
        (OURS, SECURE, 10**6): Cell(parameters=10**6, runs=[run(2.0)]),
        (FLOWER, PLAIN, 10**6): Cell(parameters=10**6, runs=[run(4.0), run(8.0)]),
        (FLOWER, SECURE, 10**6): Cell(parameters=10**6, failure="no such command\nat all"),
    }
    made = report(cells, clients=8)
    assert {figure.name: figure.value for figure in made.figures} == {"flower_over_ours_plain_1e6": pytest.approx(3.0)}
    assert made.notes[-1] == "No figure for flower secure 1e6: no such command / at all"
    assert len(made.tables[0].rows) == 4
    assert made.tables[1].rows[0][:4] == ("flower", "plain", "1e6", "3.00")


def test_a_peer_that_is_missing_is_named_and_ours_counts(monkeypatch):
    class OurArm:
        def run(self, job):
            return run(1.0)

    @contextlib.contextmanager
    def ours(folder, *, clients):
        yield OurArm()

    @contextlib.contextmanager
    def missing(folder, *, clients):
        raise EnvironmentFailure("there is no command flwr")
        yield

    monkeypatch.setattr("benchmarks.peers.OPENERS", {OURS: ours, FLOWER: missing})
    made = measure(
        type(
            "Arguments",
            (),
            {
                "only": None,
                "quick": True,
                "smallest": False,
                "parameters": None,
                "clients": 2,
                "rounds": 2,
                "repeats": 1,
            },
        )()
    )
    assert made.figures == ()
    assert "No figure for flower plain 1e5: there is no command flwr" in made.notes

"""Messages reach servers that fail, hang and come back; nothing of an address that may be secret is shown."""

from __future__ import annotations

import base64
import json
import logging
import sys
import threading
import time
from pathlib import Path

import pytest
from support import servers
from support.harness import until

from ddptop.agent.onlookers.notify import delivery, targets
from ddptop.agent.onlookers.notify.delivery import LONGEST_S, MOST, OLDEST_S, Delivery
from ddptop.agent.onlookers.notify.messages import Message
from ddptop.agent.onlookers.notify.targets import Target, TargetError, Undelivered, masked, target

# A library of Apprise imports what Python 3.13 has no more.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr':DeprecationWarning")


def message(number: int = 1) -> Message:
    """Return a message with a number in its text."""
    return Message(run="r", kind="hang", text=f"rank 2 hangs, {number}", id=f"i/{number}", at=1.8e9, ranks=(2,))


def texts(mood: servers.Mood) -> list[str]:
    return [json.loads(content)["text"] for _, _, content in mood.taken]


def test_a_server_that_fails_hangs_and_comes_back_gets_all_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts come further and further apart; its wish for a later one is respected; all is by a clock given here."""
    monkeypatch.setattr(targets, "TIMEOUT_S", 0.2)
    said: list[str] = []
    with servers.http() as mood:
        sent = Delivery(target(f"http://127.0.0.1:{mood.port}/secret-path?key=secret-key"), said.append)
        for number in (1, 2):
            sent.put(message(number), 0.0)
        mood.code = 500
        assert sent.turn(0.0) == 1.0
        assert sent.turn(0.5) == 0.5
        mood.hangs.set()
        assert sent.turn(1.0) == 2.0
        mood.hangs.clear()
        mood.code, mood.headers = 429, {"Retry-After": "100"}
        assert sent.turn(3.0) == 100.0
        assert mood.asked == 3
        mood.code, mood.headers = 200, {}
        assert sent.turn(103.0) == 0.0
        assert sent.turn(103.0) is None
    assert sent.is_empty
    assert texts(mood) == ["rank 2 hangs, 1", "rank 2 hangs, 2"]
    assert len(said) == 2
    assert "answers 500" in said[0]
    assert "takes messages again" in said[1]
    assert not [line for line in said if "secret-" in line]


def test_a_server_that_is_not_there_is_tried_until_it_is() -> None:
    """The pause between attempts is bounded."""
    port = servers.free_port()
    sent = Delivery(target(f"http://127.0.0.1:{port}/"), lambda line: None)
    sent.put(message(), 0.0)
    now, pauses = 0.0, []
    for _ in range(9):
        pause_s = sent.turn(now)
        assert pause_s is not None
        pauses.append(pause_s)
        now += pause_s
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert max(pauses) == LONGEST_S
    with servers.http(port) as mood:
        assert sent.turn(now) is None
    assert len(mood.taken) == 1


def test_what_waits_is_bounded_and_what_is_lost_is_said() -> None:
    """The oldest go first, and those that are too old; the next message that arrives has their number."""
    with servers.http() as mood:
        sent = Delivery(target(f"http://127.0.0.1:{mood.port}"), lambda line: None)
        for number in range(MOST + 2):
            sent.put(message(number), 0.0)
        sent.put(message(-1), OLDEST_S)
        assert sent.turn(OLDEST_S + 1) is None
    (only,) = (json.loads(content) for _, _, content in mood.taken)
    assert (only["text"], only["lost"]) == ("rank 2 hangs, -1", MOST + 2)
    assert "102 earlier messages could not be delivered" in only["body"]


def test_a_target_that_hangs_holds_no_other_up() -> None:
    """Each has a thread of its own."""
    with servers.http() as stuck, servers.http() as mood:
        stuck.hangs.set()
        for each in (stuck, mood):
            sent = Delivery(target(f"http://127.0.0.1:{each.port}"), lambda line: None)
            sent.start()
            sent.put(message(), time.monotonic())
        until(lambda: mood.taken and stuck.asked, "the message at the one that answers")
        assert not stuck.taken


def test_a_redirect_is_not_followed() -> None:
    """The secret in a URL is for the server that was named; where it is now is said without what may be secret."""
    with servers.http() as mood, servers.http() as other:
        mood.code, mood.headers = 302, {"Location": f"http://127.0.0.1:{other.port}/secret-path"}
        with pytest.raises(Undelivered, match=r"is now at http://127.0.0.1:\d+/\*\*\* \(302\)"):
            target(f"http://127.0.0.1:{mood.port}/secret-path").send(message())
    assert not other.asked


def test_a_password_goes_into_the_header() -> None:
    """As every tool takes it in a URL, and into no line that is shown."""
    with servers.http() as mood:
        there = target(f"http://ann:s%40cret@127.0.0.1:{mood.port}/x")
        there.send(message())
    ((path, headers, _),) = mood.taken
    assert path == "/x"
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"ann:s@cret"
    assert there.shown == f"http://127.0.0.1:{mood.port}/***"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.slack.com/services/T0", "https://hooks.slack.com/***"),
        ("https://[::1]:8080/", "https://[::1]:8080"),
        ("https://ann:pass@host:8080/x", "https://host:8080/***"),
        ("https://ann:pa#ss@host", "https://***"),
        ("https://host/x@pass", "https://***"),
        ("https://ann@host:pass/x", "https://host/***"),
        ("https://ann:pass", "https://ann/***"),
    ],
)
def test_an_address_is_shown_without_what_may_be_a_password(url: str, shown: str) -> None:
    """Also where a password ends is not sure, and where it stands in the place of the port."""
    assert masked(url) == shown


@pytest.mark.parametrize("code", [404, 500])
def test_a_server_that_quotes_the_request_shows_no_secret(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Path, query, password and header, as they are sent and as they are meant; the rest of its answer is shown."""
    with servers.http() as mood:
        mood.code = code
        mood.body = b"Cannot POST /services/T0/TOK%2DEN1?key=k%20eyeye (TOK-EN1, k eyeye) by YW5uOmh1bnRlcjIy hunter22"
        with pytest.raises(Undelivered) as problem:
            target(f"http://ann:hunter22@127.0.0.1:{mood.port}/services/T0/TOK%2DEN1?key=k%20eyeye").send(message())
    said = str(problem.value)
    assert f"answers {code}" in said
    assert "Cannot POST ***" in said
    assert not [each for each in ("TOK", "T0", "eyeye", "hunter22", "YW5u") if each in said]


def test_a_command_gets_json_on_its_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails, is not there, or does not end, is said to; the last one is ended with all that it has started."""
    out = tmp_path / "out file"
    target(f"exec:{sys.executable} -c 'import sys; open(sys.argv[1], \"w\").write(sys.stdin.read())' '{out}'").send(
        message()
    )
    assert json.loads(out.read_text())["text"] == "rank 2 hangs, 1"
    with pytest.raises(Undelivered, match=r"exec:false \*\*\*: exit code 1"):
        target("exec:false --token secret").send(message())
    with pytest.raises(Undelivered, match="No such file"):
        target("exec:/no/such").send(message())
    monkeypatch.setattr(targets, "COMMAND_S", 0.2)
    pids = tmp_path / "pids"
    with pytest.raises(Undelivered, match="not done after"):
        target(f"exec:sh -c 'sleep 1000 & echo $! > {pids}; wait'").send(message())
    until(lambda: not Path(f"/proc/{int(pids.read_text())}").exists() or _is_zombie(int(pids.read_text())), "its end")


def _is_zombie(pid: int) -> bool:
    return ") Z " in Path(f"/proc/{pid}/stat").read_text()


def test_mail_is_sent_by_apprise(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """To a server that refuses, is silent, and comes back; neither the log nor the terminal has the password."""
    apprise = pytest.importorskip("apprise.plugins.email")
    # Else it waits some seconds between two mails.
    monkeypatch.setattr(apprise.NotifyEmail, "request_rate_per_sec", 0)
    said: list[str] = []
    with servers.mail() as mood:
        url = f"mailto://ann:hunter22@127.0.0.1:{mood.port}/?from=a@x.org&to=b@y.org&mode=insecure&rto=0.3&cto=0.3"
        monkeypatch.setattr(logging, "lastResort", None)
        sent = Delivery(target(url), said.append)
        sent.put(message(), 0.0)
        mood.code = 451
        assert sent.turn(0.0) == 1.0
        mood.hangs.set()
        assert sent.turn(1.0) == 2.0
        mood.hangs.clear()
        mood.code = 200
        assert sent.turn(3.0) is None
    ((_, _, content),) = mood.taken
    assert b"Subject: r hangs" in content
    assert b"rank 2 hangs, 1" in content
    assert "hunter22" not in "".join((*said, *capfd.readouterr()))
    assert masked(url) == "mailto://***"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("hook", "no URL"),
        ("https:///path-secret", "names no host"),
        ("https://host:99999/path-secret", "port"),
        ("https://ann@host:path-secret/x", "port"),
        ("https://ann:path-secret#x@host", "%23"),
        ("https://ann:path-secret\u2100@host/x", "no URL"),
        ("https://host/a path-secret", "characters"),
        ("exec:", "names no command"),
        ("exec:a 'path-secret", "quotation"),
        ("nosuch://path-secret", "Apprise knows no such URL"),
    ],
)
def test_an_address_that_is_none_is_refused_in_one_line(url: str, said: str) -> None:
    """With what is wrong, and without what may be secret."""
    with pytest.raises(TargetError) as problem:
        target(url)
    assert said in str(problem.value)
    assert "path-secret" not in str(problem.value)


def test_without_apprise_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A webhook and a command need nothing."""
    monkeypatch.setattr(targets, "find_spec", lambda name: None)
    with pytest.raises(TargetError, match=r"pip install 'ddptop\[notify\]'"):
        target("ntfy://topic")
    assert target("https://host/x").shown == "https://host/***"


def test_a_thread_that_is_stopped_delivers_nothing_more() -> None:
    """Not even what waits for the next attempt."""
    before = threading.enumerate()
    ids: list[str] = []
    failed = threading.Event()

    class Down(Target):
        def send(self, message: Message) -> None:
            ids.append(message.id)
            raise Undelivered("no")

    sent = Delivery(Down("https://x"), lambda line: failed.set())
    sent.start()
    (thread,) = [each for each in threading.enumerate() if each.name == "courier" and each not in before]
    sent.put(message(), time.monotonic())
    assert failed.wait(20)
    sent.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert ids == ["i/1"]


def test_the_thread_waits_out_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is tried again by itself, and what comes meanwhile follows it."""
    ids: list[str] = []

    class Flaky(Target):
        def send(self, message: Message) -> None:
            ids.append(message.id)
            if len(ids) < 3:
                raise Undelivered("no")

    monkeypatch.setattr(delivery, "FIRST_S", 0.01)
    sent = Delivery(Flaky("https://x"), lambda line: None)
    sent.start()
    for number in (1, 2):
        sent.put(message(number), time.monotonic())
    until(lambda: sent.is_empty, "both")
    assert ids == ["i/1", "i/1", "i/1", "i/2"]

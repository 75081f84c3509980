"""The relays of several hosts, over real links: the onlookers of each see all ranks, and can ask each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from support.fakes.onlookers import Onlooker
from support.fakes.ranks import beat, steps, summary
from support.fakes.relay import relayed
from support.fakes.relays import Host, NoJudge, branch_of, head_of, several
from support.harness import DEADLINE_S, until
from support.values.messages import read_reply
from support.values.recordings import read_history

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.observer.hosts import head as head_side
from ddptop.agent.observer.hosts.elsewhere import is_elsewhere
from ddptop.agent.observer.relay import frames
from ddptop.agent.observer.relay.relay import Relay
from ddptop.agent.observer.relay.verdicts import judge_of
from ddptop.agent.record.recording import read_events, read_frames, read_verdicts
from ddptop.agent.run import hosts
from ddptop.agent.run.hosts import Rendezvous
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.wire.vocabulary.refusals import Unheard

Look = Callable[..., Onlooker]
ALL_RANKS = wire.TOPIC_RANK + b"/"


@pytest.fixture
def look() -> Iterator[Look]:
    """Make onlookers, in a context of their own."""
    made: list[Onlooker] = []
    with zmq.Context() as context:

        def make(host: Host, *topics: bytes) -> Onlooker:
            looker = Onlooker(context, host.directory, *topics)
            made.append(looker)
            return looker

        yield make
        for each in made:
            each.sub.close()
            each.cmd.close()


def _records(directory: RunDir, rank: int) -> list[int]:
    return [
        each.seq
        for message in read_history(directory.database)
        if isinstance(message, wire.Steps) and message.rank == rank
        for each in message.steps
    ]


def _events(host: Host) -> list[str]:
    return [each.text for each in read_events(host.directory.database) if isinstance(each, wire.Event)]


def test_both_observers_show_all_ranks(runtime: Path, look: Look) -> None:
    """What any rank publishes is in its frame for the onlookers of both hosts, and in the record of the head."""
    with several(runtime, 2, 2) as (one, two), one.observed() as head, two.observed() as branch:
        two.find(one)
        _linked(branch)
        _met(one, two)
        lookers = [look(each, wire.TOPIC_RUN, ALL_RANKS) for each in (one, two)]
        for rank in (*one.ranks, *two.ranks):
            rank.publish(wire.TOPIC_BEAT, beat(rank.rank, 3))
            rank.publish(wire.TOPIC_STEPS, steps(rank.rank, 1, 2))
        places = [("node1", 3, 2), ("node1", 3, 2), ("node2", 3, 2), ("node2", 3, 2)]
        for looker in lookers:

            def shown(looker: Onlooker = looker) -> list[tuple[str | None, int | None, int]]:
                return [(each.host, each.step, len(each.losses)) for each in looker.rank_frames()]

            until(lambda: shown() == places, "the frames of all ranks")  # used at once
            assert {host.host: host.ranks for host in looker.run_frame().on_hosts} == {"node1": (0, 1), "node2": (2, 3)}
        until(lambda: all(_records(one.directory, rank) == [1, 2] for rank in range(4)), "the record of the head")
        branch.events.say("its own word")
        until(lambda: "node2: its own word" in _events(one), "the event of the branch in the record of the head")
        assert head.hosts.role == "head"
        assert {each.host: each.ranks for each in hosts.read_hosts(one.directory.path)} == {
            "node1": (0, 1), "node2": (2, 3)
        }  # fmt: skip
        for host in (one, two):
            until(lambda host=host: set(host.directory.everyone()) == {0, 1, 2, 3}, "all records")  # type: ignore[misc]
        assert head.refused == branch.refused == 0


def _linked(*others: Relay) -> None:
    until(lambda: all(each.hosts.role == "branch" for each in others), "the links")


def _met(head: Host, *branches: Host) -> None:
    """Let each rank be listened to, and answer that it has nothing earlier: those of branches to both observers."""
    for host in (head, *branches):
        for rank in host.ranks:
            rank.meet()
            for _ in range(1 if host is head else 2):
                rank.fill()


def test_hosts_that_count_restarts_otherwise_are_told(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torchrun that was started again counts from 0: once it is said why the ranks there are not shown."""
    monkeypatch.setattr(head_side, "_SETTLES_S", 0.5)
    with several(runtime, 1, 1) as (one, two):
        for member in one.directory.members().values():
            one.directory.write_member(msgspec.structs.replace(member, generation=1))
        with one.observed(), two.observed() as branch:
            two.find(one)
            _linked(branch)
            said = "node2 counts 0 restarts of the group and this host 1"
            until(lambda: any(text.startswith(said) for text in _events(one)), "it is told")
            branch.events.say("its own word")
            until(lambda: "node2: its own word" in _events(one), "a later event")
            assert len([text for text in _events(one) if "counts" in text]) == 1


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize(
    ("size", "mode", "reason"),
    [(48, 0o644, "others can read it"), (16, 0o600, "16 bytes are too few"), (None, 0o600, "cannot be read")],
)
def test_a_key_file_that_cannot_be_used_is_told_once_and_noted(
    runtime: Path, tmp_path: Path, node: int, size: int | None, mode: int, reason: str
) -> None:
    """On either side, as an event and for those who read the directory, until the file is in order."""
    key = tmp_path / "key"
    if size is not None:
        key.write_bytes(bytes(size))
        key.chmod(mode)
    with several(runtime, 1, 1) as found:
        path = found[node].directory.path
        hosts.write_rendezvous(path, Rendezvous("127.0.0.1", "127.0.0.1:1" if node else "127.0.0.1", str(key)))

        def why() -> str:
            rendezvous = hosts.read_rendezvous(path)
            return "" if rendezvous is None else rendezvous.why

        with relayed(found[node].directory, judge=judge_of) as relay:
            until(lambda: reason in why(), "the reason in the directory")
            relay.events.say("a later event")
            until(lambda: "a later event" in _events(found[node]), "a later event")
            key.write_bytes(bytes(48))
            key.chmod(0o600)
            until(lambda: not why(), "the reason is gone with the fault")
        assert len([text for text in _events(found[node]) if reason in text]) == 1


def test_a_command_to_any_rank_of_either_host_is_answered(runtime: Path, look: Look) -> None:
    """The rank gets the command once, with its deadline, and whoever asked gets the answer under the own number."""
    with several(runtime, 1, 1) as (one, two), one.observed(), two.observed() as branch:
        two.find(one)
        _linked(branch)
        _met(one, two)
        for place in (one, two):
            looker = look(place)
            for host in (one, two):
                (rank,) = host.ranks
                before = deadline.now_ns()
                looker.ask(rank.rank, deadline.limited(wire.Hold(7, "token"), 30.0))
                peer, command = rank.asked()
                assert isinstance(command, wire.Hold)
                assert command.until_ns is not None
                assert abs(command.until_ns - before - 30 * 10**9) < 5 * 10**9
                rank.answer(peer, wire.Reply(command.id, True, f"by {rank.rank}", step=3))
                number, payload = looker.answered()
                assert (number, read_reply(payload)) == (rank.rank, wire.Reply(7, True, f"by {rank.rank}", step=3))


def test_an_action_asked_for_at_a_branch_is_the_head_s(runtime: Path, look: Look) -> None:
    """It answers, and the event has its author; where it is lost meanwhile, whoever has asked is told so."""
    with several(runtime, 1, 1) as (one, two), two.observed() as branch:
        looker = look(two)

        def reply() -> wire.Reply:
            assert looker.cmd.poll(int(1000 * DEADLINE_S)), "no answer"
            return read_reply(looker.cmd.recv())

        with one.observed() as head:
            two.find(one)
            _linked(branch)
            _met(one, two)
            until(lambda: [each.state for each in head.hosts.hosts()] == ["linked"], "the other host")
            looker.cmd.send(wire.encode(wire.Act(7, "dance", "eve")))
            assert reply() == wire.Reply(7, False, "there is no action 'dance'")
            until(lambda: "dance refused: there is no action 'dance' · eve" in _events(one), "the event")
            looker.cmd.send(wire.encode(wire.Act(8, "pause", "eve")))
            assert isinstance(one.ranks[0].asked()[1], wire.Hold)
        lost = reply()
        assert (lost.id, lost.refusal) == (8, "unheard")
        assert lost.text.startswith("node1, the host of rank 0, is not heard: it may have been done")


def test_verdicts_are_the_head_s_at_both_hosts(runtime: Path, look: Look) -> None:
    """The judge of the head alone judges, with the records of all hosts; the bytes of its verdicts are the same."""
    judged: dict[str, set[int]] = {}

    class Judge(NoJudge):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.heard = judged.setdefault(name, set())

        def step(self, together: dict[int, wire.Step]) -> None:
            self.heard.update(together)

        def verdicts(self, now_ns: int) -> tuple[wire.Verdict, ...]:
            return (wire.Verdict(1, "slow_rank", f"by {len(self.heard)}", 1, rank=1),) if self.heard else ()

    with (
        several(runtime, 1, 1) as (one, two),
        one.observed(judge=lambda *_: Judge("one")),
        two.observed(judge=lambda *_: Judge("two")) as branch,
    ):
        two.find(one)
        _linked(branch)
        _met(one, two)
        lookers = [look(each, wire.TOPIC_RUN) for each in (one, two)]
        for host in (one, two):
            host.ranks[0].publish(wire.TOPIC_STEPS, steps(host.ranks[0].rank, 1))
        until(lambda: judged.get("one") == {0, 1}, "the judge of the head to hear all")

        def last(looker: Onlooker) -> bytes | None:
            found = [payload for _, payload in looker.listen() if b"by 2" in payload]
            return found[-1] if found else None

        until(lambda: all(map(last, lookers)), "the verdict at both hosts")
        told = [{payload for _, payload in looker.heard if b"by 2" in payload} for looker in lookers]
        assert told[0] & told[1]
    assert "two" not in judged


def test_what_was_published_into_a_cut_is_recorded_once_and_in_order(runtime: Path) -> None:
    """The head asks for the gap when the cable is mended; meanwhile the host is silent, and its ranks are not asked."""
    with (
        several(runtime, 1, 1) as (one, two),
        one.observed() as head,
        two.cable(one) as cable,
        two.observed() as branch,
    ):
        _linked(branch)
        _met(one, two)
        (rank,) = two.ranks
        rank.publish(wire.TOPIC_STEPS, steps(1, 0, 1))
        until(lambda: _records(one.directory, 1) == [0, 1], "the first steps")
        cable.cut()
        until(lambda: branch.hosts.role == "alone", "the branch to notice")
        until(lambda: head.hosts.hosts()[0].state == "silent", "the head to notice")
        rank.publish(wire.TOPIC_STEPS, steps(1, 2, 3))
        until(lambda: _records(two.directory, 1)[-2:] == [2, 3], "the record of the branch")
        cable.mend()
        _linked(branch)
        fill = rank.fill(2, 3)
        assert fill.first_seq == 2
        rank.publish(wire.TOPIC_STEPS, steps(1, 4))
        until(lambda: _records(one.directory, 1)[-1] == 4, "the last step")
        assert _records(one.directory, 1) == [0, 1, 2, 3, 4]
        assert any("is not heard: this is the view of node2 alone, rank 1" in each for each in _events(two))


def test_a_question_that_a_connection_took_along_is_put_again(runtime: Path) -> None:
    """Where the link is made anew before the rank has answered, nothing else would show the head what it misses."""
    with (
        several(runtime, 1, 1) as (one, two),
        one.observed() as head,
        two.cable(one) as cable,
        two.observed() as branch,
    ):
        _linked(branch)
        _met(one, two)
        (rank,) = two.ranks
        rank.publish(wire.TOPIC_STEPS, steps(1, 0, 1))
        until(lambda: _records(one.directory, 1) == [0, 1], "the first steps")
        for _ in range(2):
            before = cable.connections
            cable.drop()
            until(lambda before=before: cable.connections > before, "another connection")  # type: ignore[misc]
            _, command = rank.asked()
            assert isinstance(command, wire.Fill)
            assert command.first_seq == 2
        until(lambda: head.hosts.hosts()[0].state == "linked", "the link")
        cable.drop()
        rank.fill(2, 3)
        until(lambda: _records(one.directory, 1) == [0, 1, 2, 3], "all steps")


def test_a_branch_serves_its_ranks_while_the_head_is_away_and_finds_the_next_head(runtime: Path, look: Look) -> None:
    """A head with another port and other keys, as an observer that takes over is one, becomes the head again."""
    with several(runtime, 1, 1) as (one, two), two.observed() as branch:

        def is_shown(rank: int, step: int) -> bool:
            (one, two)[rank].ranks[0].publish(wire.TOPIC_BEAT, beat(rank, step))
            return any(each.rank == rank and each.step == step for each in looker.rank_frames())

        with one.observed():
            two.find(one)
            _linked(branch)
            _met(one, two)
            looker = look(two, ALL_RANKS)
            until(lambda: is_shown(0, 1), "the rank of the head")
        until(lambda: branch.hosts.role == "alone", "the branch to be alone")
        until(lambda: is_shown(1, 2), "its own rank")
        looker.ask(1, wire.Resume(3))
        peer, command = two.ranks[0].asked()
        two.ranks[0].answer(peer, wire.Reply(command.id, True))
        assert read_reply(looker.answered()[1]).done
        looker.ask(0, wire.Resume(4))
        assert not read_reply(looker.answered()[1]).done
        (one.directory.path / "hosts" / hosts.LISTEN).unlink(missing_ok=True)
        with one.observed():
            two.find(one)
            _linked(branch)
            _met(one)
            until(lambda: is_shown(0, 9), "the rank of the head")


def test_a_branch_that_is_killed_is_silent_and_accused_of_nothing(runtime: Path, look: Look) -> None:
    """Its ranks are told to be unheard within seconds, and a command to them is answered at once."""
    with several(runtime, 1, 1) as (one, two), one.observed() as head:
        with two.observed() as branch:
            two.find(one)
            _linked(branch)
            _met(one, two)
        until(lambda: [each.state for each in head.hosts.hosts()] in (["silent"], ["gone"]), "the host to be missed")
        until(lambda: head._hanging.unheard == {1}, "nobody to be accused who may wait for its rank")
        looker = look(one)
        looker.ask(1, wire.Resume(5))
        number, payload = looker.answered()
        assert (number, read_reply(payload)) == (
            1,
            wire.Reply(5, False, "rank 1 does not answer", refusal=Unheard.kind),
        )
        with two.observed() as branch:
            _linked(branch)
            until(lambda: not head._hanging.unheard, "its ranks to be heard again")


def test_the_head_shows_ranks_as_the_observer_of_their_host_does(runtime: Path, look: Look) -> None:
    """It takes a row a second, and all four times a second while somebody looks on; the judge gets what ranks send."""
    shown = wire.RankFrame(
        rank=1, state="frozen", activity="stopped by SIGSTOP", pid=101, host="n2", step=7, step_age_s=4.0,
        heard_age_s=2.0, losses=(0.5,), step_ms=20.0, phases_ms={"forward": 20.0}, allreduce_ms=wire.AllReduce(1.5),
        collective_ms=wire.Calls(p50=1.5), cpu_percent=3.0, log="/of/that/host", unkept=True,
    )  # fmt: skip
    of_another = wire.Rows(0.0, (msgspec.structs.replace(shown, step=99, pid=55),))
    with (
        several(runtime, 1, 1) as (one, _),
        one.observed(),
        branch_of(one.listen, one.directory.read(), (1,), "node2") as branch,
    ):
        branch.until(lambda: branch.wanted == {wire.TOPIC_RANKS, wire.TOPIC_BUNDLE, wire.TOPIC_RECORD})
        branch.tell_of(1)
        looker = look(one, wire.TOPIC_RUN, ALL_RANKS)
        branch.until(lambda: ALL_RANKS in branch.wanted, "the subscription for who looks on")

        def is_shown() -> bool:
            branch.publish(wire.topic_of(wire.TOPIC_RANK, 1), shown)
            branch.publish(wire.TOPIC_RANKS, of_another)
            return any(each.step == 7 for each in looker.rank_frames())

        branch.until(is_shown, "the frame")
        (frame,) = (each for each in looker.rank_frames() if each.rank == 1)
        assert (frame.step_age_s or 0.0) >= 4.0
        assert frame == msgspec.structs.replace(
            shown, host="node2", log=None, far=True, stands=True, step_age_s=frame.step_age_s,
            heard_age_s=frame.heard_age_s,
        )  # fmt: skip
        branch.publish(wire.TOPIC_BUNDLE, wire.Bundle((msgspec.Raw(wire.encode(steps(1, 1, 2))),)))
        branch.until(lambda: _records(one.directory, 1) == [1, 2], "the records")
        assert looker.run_frame().step_ms == 20.0


def test_a_branch_tells_of_its_own_ranks_and_shows_what_the_head_does(
    runtime: Path, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that comes into another state is told at once; the head's frames go to onlookers as they are."""
    with several(runtime, 1, 1) as (_, two), two.observed() as branch, head_of(two, (0,), "node1") as head:
        (rank,) = two.ranks
        head.until(lambda: {wire.TOPIC_OUTLINE, wire.TOPIC_RECORD} == head.wanted, "what a branch always wants")
        for topic in (wire.TOPIC_RANKS, wire.TOPIC_BUNDLE):
            head.send(b"S", topic)
        head.until(lambda: wire.TOPIC_BEAT in rank.hear(), "its rank to be heard")

        def last() -> dict[int, str]:
            rows = [wire.read_frame(payload) for topic, payload in head.published if topic == wire.TOPIC_RANKS]
            return (
                {each.rank: each.state for each in rows[-1].ranks} if rows and isinstance(rows[-1], wire.Rows) else {}
            )

        def is_told() -> bool:
            (sent,) = rank.publish(wire.TOPIC_BEAT, beat(1, 3))
            bundled = any(topic == wire.TOPIC_BUNDLE and sent in payload for topic, payload in head.published)
            return bundled and last() == {1: "running"}

        head.until(is_told, "the sign of life, and the row of its rank, and of no other one")
        monkeypatch.setattr(frames, "UNWATCHED_S", 1e6)
        rank.publish(wire.TOPIC_BEAT, msgspec.structs.replace(beat(1, 4), state="paused", held_at_ns=1))
        head.until(lambda: last() == {1: "paused"}, "its pause")
        looker = look(two, wire.TOPIC_RUN)
        head.until(lambda: wire.TOPIC_RUN in head.wanted, "the subscription of the onlooker")
        of_head = wire.RunFrame(
            run="train", state="running", program="x", world=2, at=1.0, cause="why",
            verdicts=(wire.Verdict(3, "slow_rank", "rank 0", 1),),
            on_hosts=(wire.HostFrame("node1", "linked", (0,)), wire.HostFrame("node2", "linked", (1,))),
        )  # fmt: skip
        head.publish(wire.TOPIC_OUTLINE, of_head)
        head.publish(wire.TOPIC_RUN, of_head)
        head.until(lambda: (wire.TOPIC_RUN, wire.encode(of_head)) in looker.listen(), "the frame of the head")
        assert (branch.hosts.last_verdicts, branch.hosts.cause) == (of_head.verdicts, "why")


def test_a_hostile_branch_costs_only_itself(runtime: Path, look: Look) -> None:
    """It may speak for its own ranks alone; the others are heard as before."""
    with several(runtime, 1, 1, 1) as (one, two, _), one.observed() as head, two.observed() as branch:
        two.find(one)
        _linked(branch)
        _met(one, two)
        looker = look(one, ALL_RANKS)
        with branch_of(one.listen, one.directory.read(), ranks=(2,), host="node3") as foe:
            foe.tell_of(2)
            lie = wire.encode(beat(1, 666))
            foe.publish(wire.TOPIC_BUNDLE, wire.Bundle((msgspec.Raw(wire.encode(beat(0, 666))), msgspec.Raw(lie))))
            foe.publish(
                wire.TOPIC_RANKS, wire.Rows(0.0, (wire.RankFrame(rank=1, state="failed", activity="", step=666),))
            )
            foe.publish(wire.TOPIC_RANKS, lie)
            foe.publish(wire.TOPIC_RUN, lie)
            foe.publish(wire.TOPIC_EVENT, b"noise")
            foe.send(b"M", b'{"members": [{"rank": 1}]}')
            foe.send(b"K", b"-1", b"")
            foe.send(b"A", b"f", b"1", wire.encode(wire.Reply(1, True)))
            foe.publish(wire.TOPIC_BUNDLE, wire.Bundle((msgspec.Raw(wire.encode(beat(2, 1))),)))
            two.ranks[0].publish(wire.TOPIC_BEAT, beat(1, 5))
            until(lambda: [each.step for each in looker.rank_frames()] == [None, 5, 1], "what is true of the ranks")
            assert head.refused >= 8


def test_the_main_threads_ask_each_other(runtime: Path) -> None:
    """A question of one observer is a command at the other, and its reply comes back once; without a link None does."""
    with several(runtime, 1, 1) as (one, two), one.observed() as head, two.observed() as branch:
        assert branch.hosts.ask("", wire.Kill(1, 0.0), 5.0).result(10) is None
        two.find(one)
        _linked(branch)
        until(lambda: head.hosts.hosts(), "node2")
        for asking, host, asked in ((branch, "", head), (head, "node2", branch)):
            answers = [asking.hosts.ask(host, wire.Kill(41, 0.0), 30.0) for _ in range(3)]
            found: list[tuple[bytes, wire.Command]] = []
            until(lambda asked=asked, found=found: found.extend(asked.requests.received()) or found[2:], "the commands")  # type: ignore[misc]
            assert all(is_elsewhere(sender) for sender, _ in found)
            for number, (sender, command) in enumerate(found):
                asked.requests.reply(sender, wire.Reply(command.id, True, f"told {number}"))
            assert [each.result(10) for each in answers] == [
                wire.Reply(41, True, f"told {number}") for number in range(3)
            ]  # fmt: skip
        assert head.hosts.ask("node2", wire.Kill(42, 0.0), 0.2).result(10) is None
        assert head.hosts.ask("nobody", wire.Kill(43, 0.0), 5.0).result(10) is None


def test_a_branch_of_a_large_group_tells_a_row_a_second_and_all_of_a_rank_in_sight(runtime: Path, look: Look) -> None:
    """Nobody is sent all records of a large group; those of a rank that somebody looks at are in its frame."""
    with several(runtime, 1, 1, world=70) as (one, two), one.observed(), two.observed() as branch:
        two.find(one)
        _linked(branch)
        looker, (afar,) = look(one, wire.TOPIC_RANKS), two.ranks
        afar.meet(wire.TOPIC_BATCH)
        afar.fill()
        afar.publish(wire.TOPIC_SUMMARY, summary(1, 1))
        afar.publish(wire.TOPIC_BEAT, beat(1, 4))
        until(lambda: (4, ()) in {(each.step, each.losses) for each in looker.rank_frames()}, "the row of the far rank")
        assert wire.TOPIC_STEPS not in afar.hear()
        looker.sub.subscribe(wire.topic_of(wire.TOPIC_RANK, 1))
        afar.meet(wire.TOPIC_STEPS)
        afar.publish(wire.TOPIC_STEPS, steps(1, 7))
        until(lambda: any(each.losses for each in looker.rank_frames()), "the records in sight")


def test_whole_steps_of_a_large_group_are_recorded_at_the_head_while_somebody_looks(runtime: Path, look: Look) -> None:
    """Those of a rank on another host come once they are asked about, with the newest before them."""
    with several(runtime, 1, 1, world=70) as (one, two), one.observed(), two.observed() as branch:
        two.find(one)
        _linked(branch)
        looker, (afar,) = look(one), two.ranks
        afar.meet(wire.TOPIC_BATCH)
        assert min(afar.fill(2, 3).limit for _ in (one, two)) == wire.MOST_WHOLE

        def numbers() -> tuple[int, ...]:
            kept = looker.look_back(wire.WholeSteps(1, (1,)))[0]
            assert isinstance(kept, wire.KeptSteps)
            return kept.numbers

        until(lambda: numbers() == (3, 4), "the steps before")
        afar.meet(wire.TOPIC_STEPS)
        afar.publish(wire.TOPIC_STEPS, steps(1, 4))
        until(lambda: numbers() == (3, 4, 5), "the newest step")


def _all_events(host: Host) -> list[wire.Event]:
    return [each for each in read_events(host.directory.database) if isinstance(each, wire.Event)]


def test_the_records_of_both_hosts_have_the_same_events_and_verdicts(runtime: Path) -> None:
    """Also what was told before the link and while it was cut, each once, in the same words and with its time; the last
    frames have it, too.
    """

    class Judge(NoJudge):
        def __init__(self) -> None:
            super().__init__()
            self.heard: set[int] = set()

        def beat(self, message: wire.Beat) -> None:
            self.heard.add(message.rank)

        def verdicts(self, now_ns: int) -> tuple[wire.Verdict, ...]:
            found = [wire.Verdict(0, "slow_rank", "rank 1 is slow", 1, rank=1)] if 1 in self.heard else []
            self._intervals.update(found, {}, now_ns)
            return self._intervals.verdicts

    with several(runtime, 1, 1) as (one, two), one.observed(judge=lambda *_: Judge(), finish=True) as head:
        head.events.say("said before the link by the head", rank=0)
        with two.cable(one) as cable, two.observed(finish=True) as branch:
            branch.events.say("said before the link by the branch")
            _linked(branch)
            _met(one, two)
            head.events.say("said by the head")
            branch.events.say("said by the branch", rank=1)
            two.ranks[0].publish(wire.TOPIC_EVENT, wire.Event(5, "of a rank", 1))
            two.ranks[0].publish(wire.TOPIC_BEAT, beat(1, 1))
            until(lambda: [each.text for each in read_verdicts(two.directory.database)], "the verdict of the head")
            cable.cut()
            until(lambda: branch.hosts.role == "alone", "the branch to notice")
            until(lambda: head.hosts.hosts()[0].state == "silent", "the head to notice")
            head.events.say("said in the cut by the head")
            branch.events.say("said in the cut by the branch")
            cable.mend()
            _linked(branch)
            head.events.say("the last word")
            said = [
                "said before the link by the head", "node2: said before the link by the branch", "said by the head",
                "said by the branch", "of a rank", "said in the cut by the head",
                "node2: said in the cut by the branch", "the last word",
            ]  # fmt: skip
            until(lambda: set(said) <= set(_events(one)) & set(_events(two)), "all of it in both records")
            until(lambda: sorted(map(repr, _all_events(one))) == sorted(map(repr, _all_events(two))), "the same list")
            assert [_events(two).count(text) for text in said] == [1] * len(said)
            found = [[(each.number, each.text) for each in read_verdicts(h.directory.database)] for h in (one, two)]
            assert found == [[(1, "rank 1 is slow")]] * 2
        last, _ = read_frames(two.directory.database)
        assert last is not None
        shown = [event.text for event in last.events]
        assert [shown.count(text) for text in said if "node2" not in text] == [1] * 6
        assert any(text.startswith("rank 1 is slow") for text in shown)

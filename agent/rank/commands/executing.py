"""The commands that a rank carries out: what each does, and the reply to it.

It works on the agent's thread.  A command that comes too late is refused, and one that fails is answered with a reply
that says so: no error of it reaches the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ddptop.agent import wire
from ddptop.agent.control.deadline import lateness
from ddptop.agent.rank.ahead import Passed, Unanswered
from ddptop.agent.rank.commands.answers import Answers
from ddptop.agent.rank.commands.gate import GateError
from ddptop.agent.rank.faults import describe
from ddptop.agent.rank.records.history import History

if TYPE_CHECKING:
    from ddptop.agent.rank.session import Session


class Executing:
    """Carries out the commands to a rank."""

    def __init__(
        self,
        session: Session,
        history: History,
        answers: Answers,
        publish: Callable[[bytes, bytes], None],
        send_checksums: Callable[[], None],
    ) -> None:
        """Prepare.

        Args:
            session: what commands act on.
            history: the records of the rank.
            answers: sends what is more than one reply.
            publish: publishes a message, by its topic.
            send_checksums: publishes the checksums that are there; raises nothing.
        """
        self._session = session
        self._history = history
        self._answers = answers
        self._publish = publish
        self._send_checksums = send_checksums

    def carry_out(self, peer: bytes, command: wire.Command) -> wire.Reply | None:
        """Carry out a command, or refuse it; return the reply, None where the reply comes later."""
        session, diagnoses = self._session, self._session.diagnoses
        gate = session.gate
        try:
            if (too_late := lateness(command)) is not None:
                self._publish_late(command, too_late)
                raise GateError(too_late)
            match command:
                case wire.Hold(id, token, lease_ms):
                    step = gate.promise(token, min(lease_ms, 60_000) / 1000)
                    return wire.Reply(id, True, f"will not pass step {step:,}", step)
                case wire.Commit(id, token, step, lease_ms):
                    gate.commit(token, step, min(lease_ms, 60_000) / 1000)
                    return wire.Reply(id, True, f"will hold at step {step:,}", step)
                case wire.Advance(id, step):
                    gate.advance(step)
                    return wire.Reply(id, True, f"will hold at step {step:,}", step)
                case wire.Keep(id, token):
                    gate.keep(token)
                    return wire.Reply(id, True, "kept", gate.completed)
                case wire.Resume(id, token=token):
                    was = gate.limit
                    gate.resume(token)
                    return wire.Reply(id, True, "goes on" if was is not None else "was not paused", gate.completed)
                case wire.End(id, who):
                    gate.end(who)
                    return wire.Reply(id, True, "ends", gate.completed)
                case wire.Save(id, token):
                    saved = session.saving.ask(token)
                    if saved is None:
                        return wire.Reply(id, False, "saving", gate.completed, pending=True)
                    return wire.Reply(id, saved.done, saved.text, gate.completed, took_ns=saved.took_ns)
                case wire.Probe(id):
                    probed = diagnoses.probe(command, session.device)
                    if probed is None:
                        return wire.Reply(id, False, "probing", gate.completed, pending=True)
                    return wire.Reply(id, True, "", gate.completed, probed=probed)
                case wire.Fill(id, first_seq, limit):
                    found = self._history.since(first_seq, limit)
                    if self._answers.begin(peer, found, wire.Reply(id, True, "", gate.completed)):
                        return None
                    return wire.Reply(id, False, "it answers too many others now; ask again", gate.completed)
                case wire.Kill(id) | wire.Act(id) | wire.Cancel(id):
                    return wire.Reply(id, False, "a rank does not act on the group; ask the observer")
                case wire.Inspect(id, stacks):
                    return wire.Reply(id, True, "", gate.completed, inspection=session.inspect(stacks=stacks))
                case wire.Profile(id, token=token, cancelled=True):
                    diagnoses.profiling.cancel(token)
                    return wire.Reply(id, True, "", gate.completed)
                case wire.Profile(id, first=first, steps=steps):
                    diagnoses.counting.ask(first + steps - 1)
                    return self._ahead(id, first, "profiling", "profiled", partial(diagnoses.profiling.ask, command))
                case wire.Memory(id, token=token, cancelled=True):
                    diagnoses.censuses.cancel(token)
                    return wire.Reply(id, True, "", gate.completed)
                case wire.Memory(id, first=first):
                    return self._ahead(id, first, "counting", "memory", partial(diagnoses.censuses.ask, command))
                case wire.ReadProfile(id, token, offset):
                    piece = diagnoses.profiling.read(token, offset)
                    return wire.Reply(id, piece is not None, "" if piece else "there is no such trace", piece=piece)
                case wire.Look(id, token, modules):
                    looks = diagnoses.looking.ask(token, modules=modules)
                    if looks is None:
                        return wire.Reply(id, False, "looking", gate.completed, pending=True)
                    return wire.Reply(id, True, "", gate.completed, looks=looks)
                case wire.RecordEvery(id, every):
                    refusal = session.record_every(every)
                    return wire.Reply(id, refusal is None, refusal or f"records one step in {every}", gate.completed)
                case wire.Check(id, step):
                    # Before it is asked for: the training thread may have passed the step since.
                    self._send_checksums()
                    waits = f"has not made step {step:,} yet"
                    return self._ahead(id, step, waits, "checksums", partial(session.checks.ask, step))
                case wire.Leave(id, cancelled=True):
                    session.stay()
                    return wire.Reply(id, True, "stays", gate.completed)
                case wire.Leave(id):
                    refusal = session.leave_run()
                    return wire.Reply(id, not refusal, refusal or "leaves", gate.completed)
                case wire.History(id) | wire.WholeSteps(id):
                    return wire.Reply(id, False, "a rank has its newest steps alone; ask the observer")
                case wire.ReadLog(id):
                    return wire.Reply(id, False, "a rank does not read its own log; ask the observer")
                case wire.HostEnd(id) | wire.Conclude(id):
                    return wire.Reply(id, False, "this is between observers")
        except GateError as refusal:
            return wire.Reply(command.id, False, str(refusal), gate.completed)
        except Exception as error:
            session.faults.note("a command", error)
            return wire.Reply(command.id, False, f"the agent could not: {describe(error)}")

    def _publish_late(self, command: wire.Command, late: str) -> None:
        kind = type(command).__name__.lower()
        event = wire.Event(time.time_ns(), f"{kind} {late}", self._session.rank, "warning", kind)
        self._publish(wire.TOPIC_EVENT, wire.encode(event))

    def _ahead(self, id: int, step: int, waits: str, name: str, ask: Callable[[int], object]) -> wire.Reply:
        """Ask for something at steps ahead, and return the reply to a command.

        Args:
            id: of the command.
            step: the first of the steps.
            waits: what the rank does until there is an answer.
            name: of the reply's field for the answer.
            ask: returns the answer for the steps that are completed, None until then.
        """
        # Before it is asked for: the training thread may have passed the step since.
        completed = self._session.gate.completed
        try:
            found = ask(completed)
        except Passed:
            return wire.Reply(id, False, f"has passed step {step:,}", completed)
        except Unanswered as problem:
            # Without a step nobody asks once more.
            return wire.Reply(id, False, str(problem))
        if found is None:
            return wire.Reply(id, False, waits, completed, pending=True)
        return msgspec.structs.replace(wire.Reply(id, True, "", completed), **{name: found})

"""Every message that crosses a ZeroMQ socket of ddptop. This package has all names that others use: `wire.Step`.

codec       messages as bytes: `encode`, and `read_*` for each direction
report      the report on a run and its end
frames      the run and its ranks at one moment, as the observer makes them
commands    from onlookers and observers, DEALER -> ROUTER, one payload each
answers     one `Reply` to each command, and the messages before it
steps       the numbers of steps
telemetry   from PUB sockets, `[topic, payload]`
inspection  the place at which a rank stands, in detail
diagnoses   the traces of profiled steps, the census of a rank's memory, the experiments of a held rank
hosts       between the observers of a run on several hosts, and of the hosts
message     the base of all messages, the types of their numbers, the bounds on their bytes
vocabulary  words that messages have, and their meanings
incoming    the cleaning of decoded messages

Each imports only entries below it in this list; `commands`, `answers` and `steps` do not import each other, nor do
`telemetry`, `inspection` and `diagnoses`.

The messages need msgspec and the cleaning of text, and nothing else, so that any program can read and write them.
A message that was read here is clean and bounded, whoever sent it: text by `incoming`, whole numbers by their types.
What comes to the observer's command socket as two frames, `[number of a rank, payload]`, goes on to that rank; its
answers come back as two such frames. An answer that cannot be delivered is dropped.
Fields whose name ends in `at_ns` are wall-clock nanoseconds (`time.time_ns`), other `_ns` fields are
durations, but for `asked_ns` and `until_ns` (see `Expiring`).  `None` means "not known", never zero.
A field may be added only at the end and only with a default; any other change raises `PROTOCOL`.
"""

from __future__ import annotations

from ddptop.agent.wire.answers import MOST_OF_LOG as MOST_OF_LOG
from ddptop.agent.wire.answers import AlignedStep as AlignedStep
from ddptop.agent.wire.answers import AlignedSteps as AlignedSteps
from ddptop.agent.wire.answers import Answer as Answer
from ddptop.agent.wire.answers import Compared as Compared
from ddptop.agent.wire.answers import Extent as Extent
from ddptop.agent.wire.answers import HistoryAnswer as HistoryAnswer
from ddptop.agent.wire.answers import HistoryPart as HistoryPart
from ddptop.agent.wire.answers import KeptSteps as KeptSteps
from ddptop.agent.wire.answers import LogPiece as LogPiece
from ddptop.agent.wire.answers import Parameters as Parameters
from ddptop.agent.wire.answers import Reply as Reply
from ddptop.agent.wire.answers import Split as Split
from ddptop.agent.wire.codec import Unreadable as Unreadable
from ddptop.agent.wire.codec import encode as encode
from ddptop.agent.wire.codec import is_reply as is_reply
from ddptop.agent.wire.codec import read_answer as read_answer
from ddptop.agent.wire.codec import read_bundle as read_bundle
from ddptop.agent.wire.codec import read_command as read_command
from ddptop.agent.wire.codec import read_frame as read_frame
from ddptop.agent.wire.codec import read_history as read_history
from ddptop.agent.wire.codec import read_host_hello as read_host_hello
from ddptop.agent.wire.codec import read_numbers as read_numbers
from ddptop.agent.wire.codec import read_recorded as read_recorded
from ddptop.agent.wire.codec import read_telemetry as read_telemetry
from ddptop.agent.wire.codec import read_verdict as read_verdict
from ddptop.agent.wire.commands import Act as Act
from ddptop.agent.wire.commands import Advance as Advance
from ddptop.agent.wire.commands import Caller as Caller
from ddptop.agent.wire.commands import Cancel as Cancel
from ddptop.agent.wire.commands import Check as Check
from ddptop.agent.wire.commands import Command as Command
from ddptop.agent.wire.commands import Commit as Commit
from ddptop.agent.wire.commands import End as End
from ddptop.agent.wire.commands import Expiring as Expiring
from ddptop.agent.wire.commands import Fill as Fill
from ddptop.agent.wire.commands import History as History
from ddptop.agent.wire.commands import Hold as Hold
from ddptop.agent.wire.commands import Inspect as Inspect
from ddptop.agent.wire.commands import Keep as Keep
from ddptop.agent.wire.commands import Kill as Kill
from ddptop.agent.wire.commands import Leave as Leave
from ddptop.agent.wire.commands import Look as Look
from ddptop.agent.wire.commands import Memory as Memory
from ddptop.agent.wire.commands import Probe as Probe
from ddptop.agent.wire.commands import Profile as Profile
from ddptop.agent.wire.commands import ReadLog as ReadLog
from ddptop.agent.wire.commands import ReadProfile as ReadProfile
from ddptop.agent.wire.commands import RecordEvery as RecordEvery
from ddptop.agent.wire.commands import Resume as Resume
from ddptop.agent.wire.commands import Save as Save
from ddptop.agent.wire.commands import WholeSteps as WholeSteps
from ddptop.agent.wire.diagnoses.memory import CENSUS_MS as CENSUS_MS
from ddptop.agent.wire.diagnoses.memory import LEAST as LEAST
from ddptop.agent.wire.diagnoses.memory import LEAST_OBJECTS as LEAST_OBJECTS
from ddptop.agent.wire.diagnoses.memory import MOST_CENSUS_STEPS as MOST_CENSUS_STEPS
from ddptop.agent.wire.diagnoses.memory import MOST_KINDS as MOST_KINDS
from ddptop.agent.wire.diagnoses.memory import DeviceMemory as DeviceMemory
from ddptop.agent.wire.diagnoses.memory import MemoryUse as MemoryUse
from ddptop.agent.wire.diagnoses.memory import ObjectKind as ObjectKind
from ddptop.agent.wire.diagnoses.memory import Resident as Resident
from ddptop.agent.wire.diagnoses.probes import MOST_MEASURED as MOST_MEASURED
from ddptop.agent.wire.diagnoses.probes import MOST_PAIRS as MOST_PAIRS
from ddptop.agent.wire.diagnoses.probes import Board as Board
from ddptop.agent.wire.diagnoses.probes import Carried as Carried
from ddptop.agent.wire.diagnoses.probes import Facts as Facts
from ddptop.agent.wire.diagnoses.probes import Measured as Measured
from ddptop.agent.wire.diagnoses.probes import Pair as Pair
from ddptop.agent.wire.diagnoses.probes import Probed as Probed
from ddptop.agent.wire.diagnoses.profiles import LARGEST_PROFILE as LARGEST_PROFILE
from ddptop.agent.wire.diagnoses.profiles import MOST_OF_PROFILE as MOST_OF_PROFILE
from ddptop.agent.wire.diagnoses.profiles import MOST_PROFILED as MOST_PROFILED
from ddptop.agent.wire.diagnoses.profiles import MOST_SPANS as MOST_SPANS
from ddptop.agent.wire.diagnoses.profiles import PhaseSpan as PhaseSpan
from ddptop.agent.wire.diagnoses.profiles import Profiled as Profiled
from ddptop.agent.wire.diagnoses.profiles import ProfiledStep as ProfiledStep
from ddptop.agent.wire.diagnoses.profiles import ProfilePiece as ProfilePiece
from ddptop.agent.wire.frames import TOPIC_OUTLINE as TOPIC_OUTLINE
from ddptop.agent.wire.frames import TOPIC_RANK as TOPIC_RANK
from ddptop.agent.wire.frames import TOPIC_RANKS as TOPIC_RANKS
from ddptop.agent.wire.frames import TOPIC_RUN as TOPIC_RUN
from ddptop.agent.wire.frames import AllReduce as AllReduce
from ddptop.agent.wire.frames import Calls as Calls
from ddptop.agent.wire.frames import EncodedRows as EncodedRows
from ddptop.agent.wire.frames import EventLine as EventLine
from ddptop.agent.wire.frames import RankFrame as RankFrame
from ddptop.agent.wire.frames import Restart as Restart
from ddptop.agent.wire.frames import Rows as Rows
from ddptop.agent.wire.frames import RunFrame as RunFrame
from ddptop.agent.wire.hosts import MOST_HOSTS as MOST_HOSTS
from ddptop.agent.wire.hosts import TOPIC_BUNDLE as TOPIC_BUNDLE
from ddptop.agent.wire.hosts import UNHEARD as UNHEARD
from ddptop.agent.wire.hosts import Bundle as Bundle
from ddptop.agent.wire.hosts import Census as Census
from ddptop.agent.wire.hosts import Conclude as Conclude
from ddptop.agent.wire.hosts import HostEnd as HostEnd
from ddptop.agent.wire.hosts import HostFrame as HostFrame
from ddptop.agent.wire.hosts import HostHello as HostHello
from ddptop.agent.wire.inspection import MOST_FRAMES as MOST_FRAMES
from ddptop.agent.wire.inspection import MOST_PLACES as MOST_PLACES
from ddptop.agent.wire.inspection import MOST_STACKS as MOST_STACKS
from ddptop.agent.wire.inspection import MOST_THREADS as MOST_THREADS
from ddptop.agent.wire.inspection import Frame as Frame
from ddptop.agent.wire.inspection import GroupCalls as GroupCalls
from ddptop.agent.wire.inspection import Inspection as Inspection
from ddptop.agent.wire.inspection import Looks as Looks
from ddptop.agent.wire.inspection import OpenCall as OpenCall
from ddptop.agent.wire.inspection import PastCall as PastCall
from ddptop.agent.wire.inspection import Stack as Stack
from ddptop.agent.wire.inspection import Thread as Thread
from ddptop.agent.wire.inspection import Work as Work
from ddptop.agent.wire.message import MAX_COMMAND_BYTES as MAX_COMMAND_BYTES
from ddptop.agent.wire.message import MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES
from ddptop.agent.wire.message import MAX_RECORD_BYTES as MAX_RECORD_BYTES
from ddptop.agent.wire.message import MOST_COLUMNS as MOST_COLUMNS
from ddptop.agent.wire.message import MOST_RANKS as MOST_RANKS
from ddptop.agent.wire.message import MOST_WHOLE as MOST_WHOLE
from ddptop.agent.wire.message import PROTOCOL as PROTOCOL
from ddptop.agent.wire.message import UNREAD as UNREAD
from ddptop.agent.wire.message import Rank as Rank
from ddptop.agent.wire.telemetry import DEVICE_PHASES as DEVICE_PHASES
from ddptop.agent.wire.telemetry import EACH_RECORD as EACH_RECORD
from ddptop.agent.wire.telemetry import HELD as HELD
from ddptop.agent.wire.telemetry import MOST_MODULES as MOST_MODULES
from ddptop.agent.wire.telemetry import MOST_SAMPLED as MOST_SAMPLED
from ddptop.agent.wire.telemetry import MOST_SUMS as MOST_SUMS
from ddptop.agent.wire.telemetry import PHASES as PHASES
from ddptop.agent.wire.telemetry import TOPIC_BATCH as TOPIC_BATCH
from ddptop.agent.wire.telemetry import TOPIC_BEAT as TOPIC_BEAT
from ddptop.agent.wire.telemetry import TOPIC_CHECKSUMS as TOPIC_CHECKSUMS
from ddptop.agent.wire.telemetry import TOPIC_EVENT as TOPIC_EVENT
from ddptop.agent.wire.telemetry import TOPIC_HELLO as TOPIC_HELLO
from ddptop.agent.wire.telemetry import TOPIC_RECORD as TOPIC_RECORD
from ddptop.agent.wire.telemetry import TOPIC_STEPS as TOPIC_STEPS
from ddptop.agent.wire.telemetry import TOPIC_SUMMARY as TOPIC_SUMMARY
from ddptop.agent.wire.telemetry import Beat as Beat
from ddptop.agent.wire.telemetry import Checksums as Checksums
from ddptop.agent.wire.telemetry import Collective as Collective
from ddptop.agent.wire.telemetry import EncodedSteps as EncodedSteps
from ddptop.agent.wire.telemetry import Event as Event
from ddptop.agent.wire.telemetry import Hang as Hang
from ddptop.agent.wire.telemetry import Hello as Hello
from ddptop.agent.wire.telemetry import Holding as Holding
from ddptop.agent.wire.telemetry import ModuleSums as ModuleSums
from ddptop.agent.wire.telemetry import NumberedSteps as NumberedSteps
from ddptop.agent.wire.telemetry import Recorded as Recorded
from ddptop.agent.wire.telemetry import Sampled as Sampled
from ddptop.agent.wire.telemetry import SampledLine as SampledLine
from ddptop.agent.wire.telemetry import Saved as Saved
from ddptop.agent.wire.telemetry import Step as Step
from ddptop.agent.wire.telemetry import Steps as Steps
from ddptop.agent.wire.telemetry import Summary as Summary
from ddptop.agent.wire.telemetry import Telemetry as Telemetry
from ddptop.agent.wire.telemetry import Threads as Threads
from ddptop.agent.wire.telemetry import Verdict as Verdict
from ddptop.agent.wire.telemetry import sampling_error as sampling_error
from ddptop.agent.wire.telemetry import topic_of as topic_of
from ddptop.agent.wire.vocabulary.verdict_kinds import VERDICT_KINDS as VERDICT_KINDS

"""What a message is on the wire stays as it was when this version of the protocol began."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import inspect

from ddptop.agent import wire

FORMS: dict[type[msgspec.Struct], str] = {
    wire.Step: (
        "seq step end_at_ns wall_ns data_ns forward_ns backward_ns optimizer_ns wait_ns other_ns loss "
        "samples collectives metrics device_ns starved_ns lr copy_ns"
    ),
    wire.Collective: "op entered_ns duration_ns bytes in_flight group blocking queued_ns estimated on_device",
    wire.Verdict: (
        "number kind text since_at_ns until_at_ns rank phase cost_ms share since_step confidence every generation hang "
        "host line line_ms line_share cause"
    ),
    wire.Hang: "kind ranks where waiting evidence sure timeout_at_ns",
    wire.Frame: "function file line source library",
    wire.Stack: "phase frames ns",
    wire.Looks: "steps places stacks",
    wire.Thread: "name frames main native_id left_out holds_gil",
    wire.OpenCall: "op group number bytes open_ns blocking sure",
    wire.PastCall: "op bytes",
    wire.Work: "at_ns file_bytes socket_bytes child_bytes child_cpu_ms thread_cpu_ms children connections",
    wire.GroupCalls: "group calls ranks recent",
    wire.Inspection: (
        "rank at_ns by pid state activity step threads threads_left_out open groups observed status cpu_percent "
        "problem generation traced_by swapped_bytes page_reads_per_s memory_bytes moved_bytes own_bytes work"
    ),
    wire.PhaseSpan: "begin_ns end_ns phase",
    wire.ProfiledStep: "step phases",
    wire.Profiled: "size steps",
    wire.ProfilePiece: "offset content",
    wire.Measured: "name values ran",
    wire.Carried: "sender receiver size large_s small_s",
    wire.Board: "name throttled celsius mhz highest_mhz errors lanes most_lanes pcie highest_pcie",
    wire.Facts: (
        "took_s cores which threads nice group load steal_percent others_percent rivals quota throttled_ms "
        "memory_limit memory_used swapped swap_reads mhz highest_mhz overheated resent board"
    ),
    wire.Probed: "measured carried small_s large_s facts order problem",
    wire.ObjectKind: "kind type dtype shape device count bytes grown grown_bytes made holder graphs",
    wire.Resident: (
        "anonymous file shared anonymous_grown file_grown shared_grown heap heap_grown heap_kept heap_kept_grown"
    ),
    wire.DeviceMemory: "device allocated reserved allocated_grown reserved_grown peak snapshot problem",
    wire.MemoryUse: (
        "first last kinds left_out tensor_bytes tensor_grown object_bytes object_grown resident devices "
        "census_ns elapsed_ns"
    ),
    wire.ModuleSums: "group number steps layout sums members names sharded left_out",
    wire.Checksums: "checksums: rank step at_ns modules took_ns every generation",
    wire.Hello: (
        "hello: protocol run run_id rank local_rank world pid started_at_ns host program agent_version "
        "python_version generation"
    ),
    wire.Beat: (
        "beat: rank at_ns state activity step step_at_ns seq memory_bytes memory_total_bytes cpu_percent "
        "device_percent device backend torch_version total_steps note mechanism outstanding dropped "
        "refused faults fault health timed_every held_at_ns timeout_s checkpoints coordinates generation "
        "communicated"
    ),
    wire.Steps: "steps: rank steps generation",
    wire.Summary: (
        "summary: rank number end_at_ns step seq steps wall_ns data_ns forward_ns backward_ns "
        "optimizer_ns wait_ns other_ns loss samples starved_ns p50_ns p99_ns metrics generation copy_ns"
    ),
    wire.SampledLine: "phase where share",
    wire.Sampled: (
        "sampled: rank at_ns span_ns looks shares lines still_since_ns still_at cost_percent generation blocks "
        "log_step log_total log_loss log_at_ns problem busy starved"
    ),
    wire.Event: "event: at_ns text rank level action who",
    wire.EventLine: "at text rank level verdict",
    wire.Restart: "generation at step",
    wire.HostFrame: (
        "host state ranks heard_at offset_ms offset_error_ms rtt_ms agent_version node step_ms own_ms gone"
    ),
    wire.AllReduce: "p50 p99 wait transfer",
    wire.Calls: "op p50 p99",
    wire.RankFrame: (
        "rank_frame: heard_age_s losses memory_total_bytes memory_kind cpu_percent device_percent device "
        "mechanism outstanding missed dropped refused device_ms torch_version python_version timed_every faults "
        "stands communicated far unkept rank host pid state activity step loss is_loss_unsure step_ms phases_ms "
        "allreduce_ms collective_ms samples_per_s tokens_per_s flops flops_per_s mfu memory_bytes step_age_s "
        "health fault metrics coordinates log ended"
    ),
    wire.RunFrame: (
        "run_frame: placement started_at ended_at held_since eta_s step_ms phases_ms loss is_loss_unsure "
        "collective slowest launched cause_rank one_host one_device events logged outstanding checkpoints "
        "timeout_s ending action waiting restarts max_restarts run_id grace_s generation placed stands "
        "unlinked_why on_hosts run at state program world backend device step total_steps steps_are total_by "
        "samples_per_s tokens_per_s flops_per_s mfu goes_on pid supervised orphaned exit_code cause note "
        "recorded_every injected ends_at awaits refused unlinked missing_steps named_from_ms verdicts"
    ),
    wire.Rows: "rows: at ranks",
    wire.Bundle: "bundle: messages",
    wire.HostHello: "host_hello: protocol agent_version run run_id host world generation ranks at_ns",
    wire.Compared: "group number ranks tensors differing_ranks differing_tensors first text",
    wire.Parameters: "step modules reasons",
    wire.LogPiece: "inode offset content size anew",
    wire.Census: "ranks helpers left",
    wire.HostEnd: "host_end: id host generation deaths members over",
    wire.Conclude: "conclude: id state exit_code cause cause_rank cause_kind ended_at_ns",
    wire.Hold: "hold: id token lease_ms asked_ns until_ns",
    wire.Commit: "commit: id token step lease_ms asked_ns until_ns",
    wire.Keep: "keep: id token asked_ns until_ns",
    wire.Resume: "resume: id asked_ns until_ns",
    wire.Fill: "fill: id first_seq limit",
    wire.Profile: "profile: id token number first steps",
    wire.Memory: "memory: id token number first steps cancelled",
    wire.ReadProfile: "read_profile: id token offset",
    wire.Probe: "probe: id token part kind ms size closely files rounds asked_ns until_ns",
    wire.Inspect: "inspect: id stacks native",
    wire.Look: "look: id token",
    wire.Check: "check: id step",
    wire.ReadLog: "read_log: id inode offset tail",
    wire.RecordEvery: "record_every: id every",
    wire.Kill: "kill: id grace_s rank who pid started signal asked_ns until_ns host",
    wire.Leave: "leave: id cancelled asked_ns until_ns",
    wire.Advance: "advance: id step asked_ns until_ns",
    wire.End: "end: id who asked_ns until_ns",
    wire.Save: "save: id token asked_ns until_ns",
    wire.Act: "act: id action who steps checkpoint asked_ns until_ns",
    wire.Cancel: "cancel: id who asked_ns until_ns",
    wire.History: "history: id metric ranks first last by most width",
    wire.Split: "begun_ns last estimated",
    wire.AlignedStep: "rank step begin_ns is_compared error_ns splits",
    wire.AlignedSteps: "aligned_steps: id steps",
    wire.KeptSteps: "kept_steps: id numbers complete generation compared",
    wire.WholeSteps: "whole_steps: id ranks first last most",
    wire.Extent: "extent: id first last newest complete names refused",
    wire.HistoryPart: "history_part: id metric by width begin columns ranks mean low high count at at_s",
    wire.Reply: (
        "reply: id done text step pending took_ns refusal parameters "
        "inspection checksums census log profiled piece looks probed"
    ),
}
"""Of each message in version 4 of the protocol its tag and its fields in their order; parts of messages have no tag."""


def test_every_message_has_a_form_in_this_version() -> None:
    """A new message is added to the table; a new version has a table of its own."""
    assert wire.PROTOCOL == 4
    unions: tuple[Any, ...] = (wire.Telemetry, wire.Command, wire.Answer, wire.HistoryAnswer)
    unions += (wire.Telemetry | wire.HostHello | wire.Bundle, wire.RunFrame | wire.RankFrame | wire.Rows)
    messages = {kind for kind, form in FORMS.items() if ":" in form}
    assert {kind for union in unions for kind in union.__args__} == messages


@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.__name__)
def test_a_message_is_an_array_of_its_tag_and_its_fields(kind: type[msgspec.Struct]) -> None:
    """A peer of this version finds each value at its index; what was added stands behind, and may be left out."""
    tag, _, fields = FORMS[kind].rpartition(": ")
    names = fields.split()
    values = {name: index for index, name in enumerate(names)}
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    assert not any(field.required for field in described.fields[len(names) :])
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(kind(**values)))
    known = [tag, *values.values()] if tag else [*values.values()]
    assert sent[: len(known)] == known

"""`notify` and `export`: have people and programs know of a run that do not look at it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from ddptop.tui.cli.parsing import complain, whole
from ddptop.tui.cli.verbs.options import Verbs, add_verb, chosen

_RUN: Final = "name of the run, its beginning, or its last 4 digits"
_TOKEN: Final = 16
"""Letters of a token at least."""
_EXTRAS: Final = {"prometheus_client": "export", "pyarrow": "parquet"}
"""By package, the extra that installs it."""


def add(verbs: Verbs) -> None:
    notify = add_verb(
        verbs, "notify", "send messages when something is wrong with a run",
        "Starts a process beside a live run that looks on until its end, and sends a message when it hangs, loses a "
        "rank, computes NaN, is slow for long, grows in memory or is over, and once more when that is over. `launch "
        "--notify URL` and the settings do the same for a run from its start.",
        """
        ddptop notify --test https://example.org/hook   # does a message arrive?
        ddptop notify resnet-7f --to ntfy://my-topic    # by Apprise
        ddptop notify resnet-7f --to 'exec:page --loud' # JSON on its standard input
        ddptop notify resnet-7f --off
        """,
        {0: "done; --test: delivered", 1: "--test: not delivered", 2: "wrong options, no such run or address"},
    )  # fmt: skip
    notify.add_argument("run", metavar="RUN", nargs="?", help=f"{_RUN}; without it the only live run")
    what = notify.add_mutually_exclusive_group()
    what.add_argument(
        "--to", action="append", default=[], metavar="URL", help="where to (besides the settings); may be repeated"
    )
    what.add_argument("--test", metavar="URL", help="send one message there now, and say whether it was taken")
    what.add_argument("--off", action="store_true", help="send no more to what was given for this run")
    notify.set_defaults(carry=_notify, remote_command=None)
    _add_export(verbs)


def _add_export(verbs: Verbs) -> None:
    export = add_verb(
        verbs, "export", "give the numbers of runs to Prometheus, or steps as tables",
        "Serves the numbers of live runs to Prometheus, or keeps them in a file for the node exporter, until Ctrl-C; "
        "or writes all recorded steps and collectives of a run as tables.",
        """
        ddptop export --prometheus 9464             # all live runs, on this machine
        ddptop export --textfile /var/lib/node_exporter/ddptop.prom
        ddptop export --rules > ddptop.rules.yml    # alerts, for Prometheus
        ddptop export --dashboard > ddptop.json     # a dashboard, for Grafana
        ddptop export resnet-7f --parquet tables    # as well --csv
        """,
        {0: "written", 1: "written, but a part of the record cannot be read",
         2: "wrong options, no such run, or a port or file that is in use", 130: "Ctrl-C"},
    )  # fmt: skip
    export.add_argument("runs", metavar="RUN", nargs="*", help=f"{_RUN}; without it all live runs")
    what = export.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--prometheus", type=whole(0, 65_535), metavar="PORT", help="serve /metrics there; 0: a free port"
    )
    what.add_argument("--textfile", metavar="FILE", help="write samples into FILE, a *.prom, again and again")
    what.add_argument("--parquet", metavar="DIR", help="write steps.parquet and collectives.parquet there")
    what.add_argument("--csv", metavar="DIR", help="write steps.csv and collectives.csv there")
    what.add_argument("--dashboard", action="store_true", help="print a dashboard for Grafana, as JSON")
    what.add_argument("--rules", action="store_true", help="print rules for alerts of Prometheus, as YAML")
    export.add_argument("--host", metavar="ADDRESS", help="with --prometheus: listen there, and not on 127.0.0.1 alone")
    export.add_argument(
        "--token-file", type=Path, metavar="FILE", help="with --host: a file with what Prometheus has to know"
    )
    export.add_argument("--every", type=whole(1, 3600), metavar="S", help="with --textfile: seconds in between (15)")
    export.add_argument("--once", action="store_true", help="with --textfile: write it once")
    export.set_defaults(carry=_export, run=None, remote_command=None)


def _notify(options: argparse.Namespace) -> int:
    from ddptop.agent.client.host import settings
    from ddptop.agent.client.start import notifier
    from ddptop.agent.onlookers.notify.targets import target
    from ddptop.tui.cli.verbs.launch import addresses

    chosen_settings = settings.load()
    given = addresses([*options.to, *filter(None, [options.test])], chosen_settings)
    if options.test is not None:
        return _test(options.test)
    run = chosen(options.run)
    if options.off:
        notifier.set_targets(run, ())
        print(f"nothing more is sent on {run.name}" + (", but to what is set" if chosen_settings.notify.to else ""))
        return 0
    if run.has_ended():
        return complain(f"run {run.name} has ended: there is nothing to come", 2)
    known = [*dict.fromkeys((*chosen_settings.notify.to, *notifier.targets(run), *given))]
    if not known:
        return complain("notify: nobody is to be told: give --to URL, or set `to` in [notify] of the settings", 2)
    notifier.start(run, given)
    if not notifier.await_change(run, to_live=True):
        return complain(f"run {run.name}: its notifier does not start; {notifier.log(run)} may tell why", 1)
    print(f"messages on {run.name} go to {', '.join(target(url).shown for url in known)}, until it is over")
    return 0


def _test(url: str) -> int:
    from ddptop.agent.onlookers.notify.notifier import trial
    from ddptop.agent.onlookers.notify.targets import target

    there = target(url)
    there.send(trial())
    print(f"{there.shown} has taken a message")
    return 0


def _export(options: argparse.Namespace) -> int:
    if options.dashboard or options.rules:
        from importlib.resources import files

        name = "dashboard.json" if options.dashboard else "rules.yml"
        sys.stdout.write((files("ddptop.agent.onlookers.export") / name).read_text(encoding="utf-8"))
        return 0
    if (options.host is None) != (options.token_file is None) or (options.host and options.prometheus is None):
        return complain("export: --prometheus PORT, --host and --token-file FILE go together: others are let in", 2)
    if options.textfile is None and (options.every is not None or options.once):
        return complain("export: --every and --once go with --textfile", 2)
    try:
        if options.prometheus is not None:
            return _serve(options)
        return _keep(options) if options.textfile is not None else _tables(options)
    except ModuleNotFoundError as missing:
        if (extra := _EXTRAS.get((missing.name or "").partition(".")[0])) is None:
            raise
        return complain(f"export: {missing.name} is not installed; pip install 'ddptop[{extra}]'", 2)


def _serve(options: argparse.Namespace) -> int:
    from ddptop.agent.client.acting.actor import who
    from ddptop.agent.onlookers.export import prometheus

    token = ""
    if (file := options.token_file) is not None:
        try:
            token, mode = file.read_text().strip(), file.stat().st_mode
        except (OSError, ValueError) as problem:
            return complain(f"{file}: {getattr(problem, 'strerror', None) or problem}", 2)
        if mode & 0o007:
            return complain(f"{file}: everybody can read it: chmod 600 it", 2)
        if len(token) < _TOKEN or not token.isascii():
            return complain(f"{file}: a token has at least {_TOKEN} letters: openssl rand -hex 32 > {file}", 2)
    named, actor = [chosen(name) for name in options.runs], who("exporter")
    address = options.host or "127.0.0.1"
    try:
        server = prometheus.Server((address, options.prometheus), lambda: prometheus.frames(named, actor), token)
    except OSError as problem:
        return complain(f"export: {address} port {options.prometheus}: {problem.strerror}; choose another", 2)
    shown = f"[{address}]" if ":" in address else address
    print(f"http://{shown}:{server.server_address[1]}/metrics; ctrl+c ends it", flush=True)
    with server:
        server.serve_forever()
    return 0


def _keep(options: argparse.Namespace) -> int:
    import time

    from ddptop.agent.client.acting.actor import who
    from ddptop.agent.onlookers.export import prometheus

    if not options.textfile.endswith(".prom"):
        return complain(f"export: {options.textfile}: the node exporter reads files that end in .prom", 2)
    named, actor = [chosen(name) for name in options.runs], who("exporter")
    every_s = options.every or 15
    due = time.monotonic()
    while True:
        try:
            prometheus.write(options.textfile, lambda: prometheus.frames(named, actor))
        except OSError as problem:
            return complain(f"{options.textfile}: {problem.strerror}", 2)
        if options.once:
            return 0
        due = max(due + every_s, time.monotonic())
        time.sleep(due - time.monotonic())


def _tables(options: argparse.Namespace) -> int:
    from ddptop.agent.onlookers.export import tables

    if len(options.runs) > 1:
        return complain("export: tables are of one run", 2)
    kind: type[tables.Table] = tables.CsvTable
    if options.parquet is not None:
        import pyarrow.parquet  # noqa: F401 - before anything is made

        kind = tables.ParquetTable
    run = chosen(options.runs[0] if options.runs else None, last=True)
    lines, problems = tables.write(run, Path(options.parquet or options.csv), kind)
    for line in problems:
        print(f"ddptop: {line}", file=sys.stderr)
    print(*lines, sep="\n")
    return 1 if problems else 0

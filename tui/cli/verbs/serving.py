"""`serve`: the dashboard in a browser."""

from __future__ import annotations

import argparse

from ddptop.tui.cli.parsing import complain, whole
from ddptop.tui.cli.verbs.options import Verbs, add_run, add_verb, chosen, configured


def add(verbs: Verbs) -> None:
    service = add_verb(
        verbs, "serve", "show a run in a browser on this machine, read-only by default",
        "Shows the dashboard of a run in a browser of this machine, until Ctrl-C. Only who has the printed address "
        "gets in.",
        """
        ddptop serve resnet-7f
        ddptop serve resnet-7f --control  # with pause and kill
        """,
        {0: "the site has ended", 2: "wrong options, no such run, or no free port", 130: "Ctrl-C"},
    )  # fmt: skip
    add_run(service)
    service.add_argument(
        "--port", type=whole(0, 65_535), default=8765, metavar="N", help="where to listen (8765); 0: any free port"
    )
    service.add_argument("--control", action="store_true", help="let the browser pause and kill")
    service.set_defaults(carry=_serve)


def _serve(options: argparse.Namespace) -> int:
    try:
        from ddptop.tui.app.web import service
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] not in ("textual_serve", "aiohttp", "jinja2"):
            raise
        return complain("serve: textual-serve is not installed; pip install 'ddptop[serve]'", 2)
    import secrets

    configured(options)
    run = chosen(options.run, looks=True)
    run_id = run.record().run_id
    try:
        listening = service.listen(options.port)
    except OSError as problem:
        return complain(f"serve: port {options.port}: {problem.strerror}; choose another with --port", 2)
    token = secrets.token_urlsafe(24)
    site = service.Site(run.name, run_id, listening.getsockname()[1], token, control=options.control)
    can = "kill the run" if options.control else "look at the run (read-only)"
    address = f"{run.name} at {site.address}\nwhoever has this address can {can}; ctrl+c ends the site"
    # In one piece: whoever has read the first line may end the site.
    print(address, flush=True)
    service.serve(site, listening)
    return 0

"""Where torch has compiled a model, no look at its modules has it compiled anew."""

from __future__ import annotations

import subprocess
import sys

COMPILED = """
import sys
import torch
from torch._dynamo.utils import counters
from torch.nn.modules import module
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.inspection.looks.modules import Modules
from ddptop.agent.rank.records.stamps import Stamps

net = torch.nn.Linear(3, 3)
compiled = torch.compile(net, backend="eager")
modules = Modules(Stamps(), Faults())
compiled(torch.ones(2, 3))
before = {name: dict(each) for name, each in counters.items()}
modules.begin()
modules.boundary(1)
assert not module._global_forward_hooks
compiled(torch.ones(2, 3)).sum().backward()
assert before == {name: dict(each) for name, each in counters.items()}, counters
modules.end()
modules.boundary(2)
"""


def test_where_torch_has_compiled_anything_nothing_is_marked() -> None:
    """Its compiler guards the hooks of all modules: the model would be compiled anew, by torch's own counters."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True)

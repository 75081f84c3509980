"""The classes with bindings: all screens, dialogs and views, which are imported with it.

The first screen needs few of them, so `keymap` imports this only where all keys are asked for.
"""

from __future__ import annotations

from typing import Final

from textual.dom import DOMNode

from ddptop.tui.screens.comparison import ComparisonScreen
from ddptop.tui.screens.dialogs.field import Choice
from ddptop.tui.screens.dialogs.kill import KillDialog
from ddptop.tui.screens.dialogs.launch import LaunchDialog
from ddptop.tui.screens.dialogs.pickers import ColumnsDialog, MetricPicker, ProcessMenu, ScriptPicker, SignalMenu
from ddptop.tui.screens.dialogs.program import ProgramInput
from ddptop.tui.screens.dialogs.question import Question
from ddptop.tui.screens.help import HelpScreen
from ddptop.tui.screens.lists import FollowedScreen, ListScreen, LogScreen
from ddptop.tui.screens.live import LiveScreen
from ddptop.tui.screens.plot import PlotScreen, Plotted, PlottedScreen
from ddptop.tui.screens.rank import RankScreen
from ddptop.tui.screens.run import RunScreen
from ddptop.tui.screens.stacks import StacksScreen
from ddptop.tui.views.heatmap.heatmap import Heatmap
from ddptop.tui.views.panels import PanelGrid
from ddptop.tui.views.plot.placeholder import PlotPlaceholder
from ddptop.tui.views.ranks import RankView
from ddptop.tui.views.runs import RunList
from ddptop.tui.views.screen.events import EventSearch
from ddptop.tui.views.screen.loglist import LogList
from ddptop.tui.views.stacks.places import StackList
from ddptop.tui.views.table.table import RankTable
from ddptop.tui.views.timeline.timeline import TimelineView

SECTIONS: Final[tuple[tuple[str, type[DOMNode]], ...]] = (
    ("everywhere", LiveScreen),
    ("all ranks", RunScreen),
    ("all ranks", RankView),
    ("panels", PanelGrid),
    ("table", RankTable),
    ("columns of the table", ColumnsDialog),
    ("heatmap", Heatmap),
    ("timeline", TimelineView),
    ("plots", PlottedScreen),
    ("plots", Plotted),
    ("the plot alone", PlotScreen),
    ("crosshair", PlotPlaceholder),
    ("choice of a metric", MetricPicker),
    ("one rank", RankScreen),
    ("logs, events and stacks", ListScreen),
    ("logs and events", FollowedScreen),
    ("logs", LogScreen),
    ("logs", LogList),
    ("events", EventSearch),
    ("stacks", StacksScreen),
    ("stacks", StackList),
    ("help", HelpScreen),
    ("questions", Question),
    ("kill", KillDialog),
    ("signals", SignalMenu),
    ("processes", ProcessMenu),
    ("list of runs", RunList),
    ("two runs", ComparisonScreen),
    ("launch", LaunchDialog),
    ("launch", Choice),
    ("program of a launch", ProgramInput),
    ("choice of a script", ScriptPicker),
)
"""The classes with bindings, in the order of the help; the app's own are added to the first."""

"""Progress of work: bars with the time left on a terminal, a plain line now and then elsewhere; and of compilation."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

PAUSE = 30.0  # seconds between lines of one stage
PACE = 600.0  # seconds of the past from which the time left is predicted: reports may be minutes apart

ReportProgress = Callable[[str, float, str], object]  # stage, share done, remark


@contextmanager
def stages(console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[ReportProgress]:
    """Give a function that shows how far a stage is; stages follow one another."""
    if not console.is_terminal:
        yield Lines(console, clock).report
        return
    with Bars(console, clock) as bars:
        yield bars.report


@contextmanager
def compiling(console: Console) -> Iterator[Callable[[], None]]:
    """On a terminal, a line about the kernels that are compiled for a GPU, until the function that is given is called.

    Nothing is shown where none is compiled, as in all later runs.
    """
    if not console.is_terminal or not _runs_kernels():
        yield lambda: None
        return
    from draftproof.kernels.lib.compiling import compilations

    status, count = console.status(""), itertools.count(1)
    with ExitStack() as stack:
        stack.callback(status.stop)

        def note() -> None:
            status.update(f"compiling kernels, once for this model and GPU: {next(count)} so far")
            status.start()

        stack.enter_context(compilations(note))
        yield stack.close


def _runs_kernels() -> bool:
    """Whether there is a GPU that runs our kernels; torch is imported by whoever loaded a model."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return False
    from draftproof import kernels

    return kernels.available(torch.device("cuda"))


class Bars(Progress):
    """A bar for each kind of stage, and below them the last remark on a line of its own, so that nothing is cut off."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self.kinds: dict[str, TaskID] = {}
        self.remark = ""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TimeLeft(),
        )
        super().__init__(*columns, console=console, get_time=clock, speed_estimate_period=PACE, expand=True)

    def report(self, stage: str, share: float, remark: str) -> None:
        """Show a stage; one of the same kind, such as the next shard, takes the place of the one before."""
        kind = stage.split()[0]
        if kind not in self.kinds:
            self.kinds[kind] = self.add_task(stage, total=1.0)
        elif next(task for task in self.tasks if task.id == self.kinds[kind]).description != stage:
            self.reset(self.kinds[kind], description=stage)
        self.remark = remark
        self.update(self.kinds[kind], completed=share)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.remark:
            yield Text(self.remark, style="dim")


class TimeLeft(ProgressColumn):
    """The predicted time left of a stage."""

    def render(self, task: Task) -> Text:
        if task.finished:
            return Text("done")
        return Text("-:--:-- left" if task.time_remaining is None else f"{_hours(task.time_remaining)} left")


class Lines:
    """A line when a stage begins, when it is done, and every half minute between."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self.console, self.clock = console, clock
        self.stage, self.begun, self.said = "", 0.0, 0.0

    def report(self, stage: str, share: float, remark: str) -> None:
        now = self.clock()
        fresh = stage != self.stage
        if fresh:
            self.stage, self.begun = stage, now
        if not fresh and share < 1 and now - self.said < PAUSE:
            return
        self.said, spent = now, now - self.begun
        if share >= 1:
            state = f"done in {_hours(spent)}"
        else:
            left = f", {_hours(spent * (1 - share) / share)} left" if share > 0 and spent > 0 else ""
            state = f"{share:.0%}{left}"
        self.console.print(f"{stage}: {state}{f'; {remark}' if remark else ''}", soft_wrap=True, highlight=False)


def _hours(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))

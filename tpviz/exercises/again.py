"""An exercise from the start (checks): its stub, put into the cell that asks for it."""

import html
import sys
from dataclasses import dataclass

from tpviz.exercises.feedback import INK, Shown, card
from tpviz.i18n import _

_CODE = f"margin:6px 0 0;background:#eef1f4;color:{INK};padding:6px 10px"


@dataclass(frozen=True, slots=True, repr=False)
class Again(Shown):
    """The stub of an exercise, and the word that it counts as not answered."""

    exercise: str
    stub: str

    def put_in_cell(self) -> None:
        """Let the front end replace the running cell by the stub: JupyterLab, Notebook and VS Code do."""
        ipython = sys.modules.get("IPython")
        shell = None if ipython is None else ipython.get_ipython()
        if shell is not None:
            shell.set_next_input(self.stub, replace=True)

    @property
    def sentence(self) -> str:
        """What has happened."""
        return _("{exercise} counts as not attempted, and this cell asks it again.").format(exercise=self.exercise)

    @property
    def text(self) -> str:
        """The word, and the stub."""
        return f"○ {self.sentence}\n\n{self.stub}"

    @property
    def html(self) -> str:
        """The card, with the stub folded."""
        code = f'<pre style="{_CODE}">{html.escape(self.stub)}</pre>'
        title = html.escape(_("If the cell did not change, put this into it"))
        fold = f'<details><summary style="cursor:pointer">{title}</summary>{code}</details>'
        return card("unattempted", f"<b>○</b> {html.escape(self.sentence)}{fold}")

"""`specc check`: hypothesis over variations of a spec, drafts and batches; passes, invariants, the generated module.

from specc.check import run

report = run(load(path), max_examples=50)
assert report.ok, report.as_text(str(path))
"""

from __future__ import annotations

from specc.check.report import Counterexample, Report
from specc.check.runner import replay, run
from specc.check.workbench import Workbench

__all__ = ["Counterexample", "Report", "Workbench", "replay", "run"]

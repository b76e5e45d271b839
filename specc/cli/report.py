"""`specc report RESULTS_DIR`: one self-contained HTML page of results, a trace and a compiled spec."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from specc.cli.common import add_target, load_supported
from specc.cli.failure import FINE
from specc.diagnostics import DiagnosticError, error

if TYPE_CHECKING:
    from specc.report.page import SpecView

EPILOG = """\
The page needs nothing but itself: no network, no files. RESULTS_DIR holds what `specc bench` writes (*.json); --trace
adds a file that `specc run --trace` wrote; --spec compiles a spec and shows every pass and the module. --plots writes
the heat maps, curves and acceptance by depth of the results as PNG files too (needs matplotlib: pip install
'specc[bench]').
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "results", type=Path, nargs="?", metavar="RESULTS_DIR", help="a folder of result files, or one of them"
    )
    parser.add_argument("--spec", type=Path, metavar="SPEC", help="a decoding spec (YAML) to compile and show")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY.PATH=VALUE", dest="overrides", help="override a key of it"
    )
    add_target(parser)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="a trace to show")
    parser.add_argument("--title", default="", metavar="TEXT", help="the page's heading")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write plots of the results as PNG files")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="where the page goes")


def run(args: argparse.Namespace) -> int:
    from specc.output import check_output, make_folder, write_text
    from specc.report.page import page
    from specc.report.results import read_results
    from specc.trace.read import read_trace

    if args.results is None and args.spec is None and args.trace is None:
        remedy = "give RESULTS_DIR, --trace FILE or --spec SPEC"
        raise DiagnosticError([error("SPC487", "there is nothing to report on", help=remedy)])
    check_output(args.output)
    results = [] if args.results is None else read_results(args.results)
    trace = None if args.trace is None else read_trace(args.trace)
    spec = None if args.spec is None else _spec(args)
    text = page(results, trace, spec, args.title)
    if args.plots is not None:
        from specc.report.plots import save_plots

        make_folder(args.plots)
        for item in results:
            for path in save_plots(item, args.plots):
                print(f"wrote {path}")
    write_text(args.output, text)
    print(f"wrote {args.output}")
    return FINE


def _spec(args: argparse.Namespace) -> SpecView:
    """Compile the spec, pass by pass."""
    loaded = load_supported(args)
    from specc.report.compiler import compiled
    from specc.report.page import SpecView
    from specc.spec.text import read_text

    spec = loaded.spec
    made = compiled(loaded, args.target)
    return SpecView(spec.name, spec.description or "", args.target, tuple(args.overrides), read_text(args.spec), made)

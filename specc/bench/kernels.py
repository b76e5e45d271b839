"""Times of the Triton kernels by family, each checked against float64 before it is timed, peers beside them.

    specc bench kernels [--family NAME ...] [OPTIONS OF THE FAMILY ...]

Every family runs in a process of its own, one after the other: a fault of one kernel would end every later case of its
process. What `--family` does not take goes to the families: `--output DIR`, `--seconds S`, `--peers` (what is compared
with has to be importable: it is installed apart and never part of specc), and their own choice of cases, which
`specc bench kernels --family NAME --help` lists. Results: kernels_NAME.json.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from specc.bench.families import FAMILIES, there
from specc.bench.gpu_timing import require_gpu


def run_family(family: str, rest: Sequence[str]) -> int:
    """Exit status of the family's process."""
    return subprocess.run([sys.executable, "-m", FAMILIES[family], *rest], check=False).returncode


def main(argv: Sequence[str] | None = None) -> int:
    """The largest exit status of the families: 1 where a kernel gave wrong results."""
    given = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="specc bench kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    parser.add_argument("--family", action="append", choices=[*FAMILIES], help="only these (default: all)")
    args, rest = parser.parse_known_args(given)
    helping = bool({"-h", "--help"} & set(rest))
    if helping and not args.family:
        print(parser.format_help())
        return 0
    chosen = args.family or [family for family in FAMILIES if there(family)]
    if not helping:
        require_gpu("specc bench kernels")
    return max(run_family(family, rest) for family in chosen)


if __name__ == "__main__":
    sys.exit(main())

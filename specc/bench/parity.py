"""Parity of the generated module with transformers on a real model.

    python -m specc.bench.parity PROMPTS [--model DIR|NAME] [--spec FILE] [--tokens 128] [--limit N] [--name NAME]

For every prompt of the file: the text of speculative decoding, of plain decoding and of transformers' greedy `generate`
must be the same tokens, and the logits of plain decoding at all of them must be those of one forward pass of
transformers, max|a-b|/max|b| <= 1e-4. Writes the numbers to results/NAME.json; exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specc.bench.peer import load_peer, module_logits, peer_greedy, peer_logits, relative_error
from specc.bench.results import environment, keep
from specc.runtime.generate import Request, decode_batch
from specc.runtime.prompts import load_prompts
from specc.runtime.session import Session, open_session
from specc.spec import load

SPECS = Path(__file__).resolve().parents[1] / "specs"
BOUND = 1e-4


def compare(session: Session, peer: Any, request: Request, count: int) -> dict[str, Any]:
    """One prompt: whether the three texts are equal, and the largest relative error of the logits."""
    ids = list(request.ids)
    theirs = peer_greedy(peer, ids, count)
    plain, logits = module_logits(session.module, session.decoder, ids, count)
    speculative = decode_batch(session.decoder, [request], count).results[0]
    expected = peer_logits(peer, [*ids, *theirs[:-1]], len(ids) - 1)
    return {
        "name": request.name,
        "prompt_tokens": len(ids),
        "plain_equal": plain == theirs,
        "speculative_equal": speculative.tokens == theirs,
        "relative_error": relative_error(logits, expected),
        "tokens": len(speculative.tokens),
        "steps": len(speculative.traces) - 1,
    }


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="python -m specc.bench.parity", description=__doc__.split("\n")[0])
    parser.add_argument("prompts", type=Path, metavar="PROMPTS")
    parser.add_argument("--model", default="smollm2-135m-instruct", metavar="DIR|NAME")
    parser.add_argument("--spec", type=Path, default=SPECS / "smollm2-prompt-lookup-tree.yaml", metavar="FILE")
    parser.add_argument("--tokens", type=int, default=128, metavar="N")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N prompts")
    parser.add_argument("--name", default="parity", metavar="NAME")
    args = parser.parse_args(arguments)
    session = open_session(load(args.spec), args.model, ignore_eos=True)
    peer = load_peer(session.model)
    rows, began = [], time.perf_counter()
    for number, prompt in enumerate(load_prompts(args.prompts)[: args.limit]):
        request = Request(number, prompt.name, tuple(prompt.first_ids(session.tokenizer)))
        rows.append(compare(session, peer, request, args.tokens))
        print(rows[-1], flush=True)
    texts = sum(row["plain_equal"] and row["speculative_equal"] for row in rows)
    worst = max(row["relative_error"] for row in rows)
    passed = texts == len(rows) and worst <= BOUND
    print(f"{texts} of {len(rows)} texts of {args.tokens} tokens equal; largest relative error of logits {worst:.2e}")
    result = {"environment": environment("specc.bench.parity", arguments), "spec": session.identity.spec, "rows": rows}
    summary = {"equal_texts": texts, "prompts": len(rows), "worst_relative_error": worst, "passed": passed}
    keep(args.name, result | summary | {"tokens": args.tokens, "seconds": round(time.perf_counter() - began, 1)})
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

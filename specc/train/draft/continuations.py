"""Training text of a drafter: prompts, continued by the target itself, greedily and on demand once more with tokens
drawn, in a store that a killed run goes on from.

    prompts.jsonl, second_turns.jsonl    what is continued; sampled user turns are among them
    index.json, shard-*.safetensors      see `specc.train.draft.store`

Shards hold prompts of all sources mixed, so that a run that a bound ends early has some of each. A shard that a bound
cut short stays as it is.
"""

from __future__ import annotations

import hashlib
import math
import platform
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from specc.diagnostics import DiagnosticError, error
from specc.output import make_folder
from specc.runtime.tokenizer import Tokenizer
from specc.train.draft.generate import Generator, Limits
from specc.train.draft.overlap import Overlap, overlap_with_tests
from specc.train.draft.prompts import (
    ChatFrame,
    TrainingPrompt,
    beginning_prompts,
    chat_frame,
    encode_prompts,
    gsm8k_prompts,
    read_prompts,
    stub_prompts,
    write_prompts,
)
from specc.train.draft.store import INDEX, StoreIndex, pack, read_index, read_shard, write_shard
from specc.train.draft.targets import FrozenTarget

FIRST, SECOND = "prompts.jsonl", "second_turns.jsonl"
USER_TURN_TOKENS = 192
MIN_USER_CHARACTERS = 8
TOKENS_PER_TEXT = 220
"""About what a text has, to make no more prompts than a bound on tokens lets be continued."""
SAMPLING_SHARE, FIRST_SHARE, GREEDY_SHARE = 0.25, 0.85, 0.6
"""Of the bounds: what sampling user turns may take, what all but the second turns may, and the greedy texts where all
prompts are continued once more."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What text to make. `data` has the folders gsm8k, humaneval and mt_bench; `fingerprint` is the target's.

    Counts are prompts by source; `user_turns` are for assistants, `beginnings` for other models (from the prepared
    `corpus`, else from the standard library); `second_turns` is the share of user turns whose conversation goes on.
    `temperature`: above 0 the prompts are continued once more with tokens drawn at it. A small model's greedy texts
    soon repeat themselves; drawn ones seldom do, and its law is as good a lesson there.
    `max_tokens` and `max_seconds` end the run early: what is there then is a whole store.
    """

    data: Path
    fingerprint: str
    corpus: Path | None = None
    gsm8k: int = 7473
    stubs: int = 5000
    user_turns: int = 25000
    beginnings: int = 20000
    second_turns: float = 0.2
    max_new_tokens: int = 256
    max_prompt_tokens: int = 640
    batch: int = 512
    shard_texts: int = 4096
    seed: int = 0
    temperature: float = 0.0
    max_tokens: int | None = None
    max_seconds: float | None = None

    def recorded(self) -> dict[str, int | float]:
        """What the texts depend on: places, bounds of time and the batch are left out."""
        places = ["data", "fingerprint", "corpus", "batch", "max_seconds"]
        places += [] if self.temperature else ["temperature"]
        return {name: value for name, value in asdict(self).items() if name not in places}

    def for_bound(self, assistant: bool) -> TextOptions:
        """With no more prompts than `max_tokens` lets be continued, in the same proportions."""
        user_turns, beginnings = (self.user_turns, 0) if assistant else (0, self.beginnings)
        total = self.gsm8k + self.stubs + user_turns + beginnings
        share = 1.0 if self.max_tokens is None else min(1.0, self.max_tokens / TOKENS_PER_TEXT / max(1, total))
        return replace(
            self,
            gsm8k=math.ceil(self.gsm8k * share),
            stubs=math.ceil(self.stubs * share),
            user_turns=math.ceil(user_turns * share),
            beginnings=math.ceil(beginnings * share),
        )


def make_continuations(
    target: FrozenTarget, tokenizer: Tokenizer, options: TextOptions, out: Path, say: Say = lambda line: None
) -> StoreIndex:
    """Fill the store `out`, or go on with it. SPC471 without the data, SPC478 for a store of other options."""
    make_folder(out)
    facts = {"python": platform.python_version(), "dtype": str(target.embedding.dtype).removeprefix("torch.")}
    index = _begun(out, options, facts | {"device": target.embedding.device.type})
    overlap = overlap_with_tests(options.data)
    maker = _Maker(target, tokenizer, options, out, index, overlap, say)
    first = maker.first_prompts()
    first_share = FIRST_SHARE if maker.assistant else 1.0
    maker.continue_all(FIRST, first, first_share * (GREEDY_SHARE if options.temperature else 1.0))
    if options.temperature:
        maker.continue_all(FIRST, first, first_share, options.temperature)
    if maker.assistant and options.second_turns > 0:
        maker.continue_all(SECOND, maker.second_prompts(first), 1.0)
    say(f"text: {len(index.shards)} shards, {index.tokens:,} tokens, dropped {_total(index.dropped)}")
    return index


def _begun(out: Path, options: TextOptions, facts: dict[str, str]) -> StoreIndex:
    if not (out / INDEX).is_file():
        index = StoreIndex(options.fingerprint, options.recorded(), facts=dict(facts))
        index.write(out)
        return index
    index = read_index(out)
    for what, found, wanted in (
        ("target", index.target, options.fingerprint),
        ("options", index.options, options.recorded()),
    ):
        if found != wanted:
            message = f"{out} holds text of another {what}: {found}, not {wanted}"
            raise DiagnosticError([error("SPC478", message, help="give another folder, or remove it")])
    return index


def _total(dropped: dict[str, dict[str, int]]) -> int:
    return sum(count for reasons in dropped.values() for count in reasons.values())


def uniform_numbers(seed: int, stage: str, count: int, length: int) -> torch.Tensor:
    """[count, length] in [0, 1), the same on every machine."""
    key = hashlib.blake2b(f"{seed}:{stage}".encode(), digest_size=7).digest()
    return torch.rand(count, length, generator=torch.Generator().manual_seed(int.from_bytes(key, "little")))


class _Maker:
    """One run on one store."""

    def __init__(
        self,
        target: FrozenTarget,
        tokenizer: Tokenizer,
        options: TextOptions,
        out: Path,
        index: StoreIndex,
        overlap: Overlap,
        say: Say,
    ) -> None:
        self.target, self.tokenizer, self.out, self.index = target, tokenizer, out, index
        self.overlap, self.say, self.started = overlap, say, time.monotonic()
        self.frame: ChatFrame | None = chat_frame(tokenizer)
        self.assistant = self.frame is not None and self.frame.assistant
        self.options = options.for_bound(self.assistant)
        self._generator: Generator | None = None

    def _deadline(self, share: float) -> float:
        return self.started + share * (math.inf if self.options.max_seconds is None else self.options.max_seconds)

    def _drop(self, source: str, reason: str) -> None:
        reasons = self.index.dropped.setdefault(source, {})
        reasons[reason] = reasons.get(reason, 0) + 1

    def first_prompts(self) -> list[TrainingPrompt]:
        """The prompts of all sources, mixed; made once."""
        path, options = self.out / FIRST, self.options
        if path.is_file():
            return read_prompts(path)
        prompts = gsm8k_prompts(options.data, options.gsm8k) + stub_prompts(options.stubs, self.frame)
        if options.beginnings:
            prompts += beginning_prompts(self.tokenizer, options.corpus, options.beginnings)
        prompts = self._kept(prompts)
        if options.user_turns and self.frame is not None:
            openings = [self.frame.before_user] * options.user_turns
            turns = self._sampled(openings, "user_turns", self._deadline(SAMPLING_SHARE))
            prompts += self._kept([TrainingPrompt("user_turns", (text,)) for text in turns.values()])
        random.Random(options.seed).shuffle(prompts)
        self.index.write(self.out)
        write_prompts(path, prompts)
        counts = Counter(prompt.source for prompt in prompts)
        self.say("prompts: " + ", ".join(f"{count:,} {source}" for source, count in sorted(counts.items())))
        return prompts

    def second_prompts(self, first: Sequence[TrainingPrompt]) -> list[TrainingPrompt]:
        """The model's own next message behind its answers to a share of the user turns; made once."""
        path, frame = self.out / SECOND, self.frame
        if path.is_file() or frame is None:
            return read_prompts(path)
        answers = self._answers()
        turns = [number for number, prompt in enumerate(first) if prompt.source == "user_turns"]
        chosen = [number for number in turns[: int(len(turns) * self.options.second_turns)] if answers.get(number)]
        talks = [(*first[number].messages, answers[number]) for number in chosen]
        sampled = self._sampled([frame.conversation(talk) for talk in talks], "second_turns", self._deadline(0.92))
        made = [TrainingPrompt("second_turns", (*talks[number], text)) for number, text in sampled.items()]
        prompts = self._kept(made)
        self.index.write(self.out)
        write_prompts(path, prompts)
        self.say(f"prompts: {len(prompts):,} second_turns")
        return prompts

    def _answers(self) -> dict[int, str]:
        """What the target wrote, by prompt number, of the shards of first turns."""
        numbers: list[int] = []
        answers: list[list[int]] = []
        for shard in self.index.shards:
            if shard["prompts"] == FIRST and not shard.get("temperature"):
                texts, further = read_shard(self.out / shard["file"])
                numbers += further["numbers"].tolist()
                answers += [ids[length:].tolist() for ids, length in texts]
        return dict(zip(numbers, self._decoded(answers), strict=True))

    def _decoded(self, texts: Sequence[Sequence[int]]) -> list[str]:
        """What was said: without the token that ended it, and without blanks around."""
        stops = self.tokenizer.stop_tokens
        spoken = [list(ids[:-1] if ids and ids[-1] in stops else ids) for ids in texts]
        return [text.strip() for text in self.tokenizer.backend.decode_batch(spoken, skip_special_tokens=True)]

    def _sampled(self, openings: Sequence[str], source: str, deadline: float) -> dict[int, str]:
        """Messages in the user's place behind texts, by number; those without end or without words are dropped."""
        encoded = self.tokenizer.backend.encode_batch(list(openings), add_special_tokens=False)
        prompts = [list(item.ids) for item in encoded]
        if not prompts:
            return {}
        limits = Limits(min(self.options.batch, len(prompts)), USER_TURN_TOKENS, max(map(len, prompts)))
        generator = Generator(self.target, self.tokenizer.stop_tokens, limits, sampled=True)
        uniform = uniform_numbers(self.options.seed, source, len(prompts), USER_TURN_TOKENS)
        found = generator.run(prompts, uniform, deadline)
        numbers = sorted(found)
        texts = self._decoded([found[number] for number in numbers])
        kept: dict[int, str] = {}
        for number, text in zip(numbers, texts, strict=True):
            if found[number][-1] not in self.tokenizer.stop_tokens:
                self._drop(source, "without_end")
            elif len(text) < MIN_USER_CHARACTERS or "\ufffd" in text:
                self._drop(source, "without_words")
            else:
                kept[number] = text
        return kept

    def _kept(self, prompts: Sequence[TrainingPrompt]) -> list[TrainingPrompt]:
        """Prompts of permitted length, once each, that share nothing with tests."""
        kept: list[TrainingPrompt] = []
        seen: set[tuple[str, ...]] = set()
        for prompt, ids in zip(prompts, encode_prompts(self.tokenizer, self.frame, prompts), strict=True):
            if prompt.messages in seen:
                self._drop(prompt.source, "copy")
            elif len(ids) > self.options.max_prompt_tokens:
                self._drop(prompt.source, "too_long")
            elif self.overlap.shared_by(prompt.words):
                self._drop(prompt.source, "overlap_of_prompt")
            else:
                kept.append(prompt)
            seen.add(prompt.messages)
        return kept

    def continue_all(
        self, name: str, prompts: Sequence[TrainingPrompt], share: float, temperature: float = 0.0
    ) -> None:
        """Continue the prompts of a file, shard by shard, as far as the bounds let; shards that are there are left
        alone."""
        options = self.options
        there = {(shard["prompts"], shard["from"], shard.get("temperature", 0.0)) for shard in self.index.shards}
        encoded = encode_prompts(self.tokenizer, self.frame, prompts)
        for start in range(0, len(prompts), options.shard_texts):
            over = options.max_tokens is not None and self.index.tokens >= share * options.max_tokens
            if over or time.monotonic() >= self._deadline(share):
                return
            if (name, start, temperature) not in there:
                generator = self._writer(encoded, temperature)
                part = slice(start, start + options.shard_texts)
                self._shard(name, start, prompts[part], encoded[part], generator, self._deadline(share))

    def _shard(
        self,
        name: str,
        start: int,
        part: Sequence[TrainingPrompt],
        encoded: Sequence[list[int]],
        generator: Generator,
        deadline: float,
    ) -> None:
        """Continue one shard's prompts and write them."""
        began = time.monotonic()
        uniform = None
        if generator.sampled:
            uniform = uniform_numbers(self.options.seed, f"{name}:{start}", len(encoded), self.options.max_new_tokens)
        found = generator.run(encoded, uniform, deadline)
        numbers = sorted(found)
        texts = [encoded[number] + found[number] for number in numbers]
        kept: list[int] = []
        for place, text in enumerate(self.tokenizer.backend.decode_batch(texts, skip_special_tokens=True)):
            if self.overlap.shared_by(text):
                self._drop(part[numbers[place]].source, "overlap_of_text")
            else:
                kept.append(place)
        packed = pack([texts[place] for place in kept], [len(encoded[numbers[place]]) for place in kept])
        file = f"shard-{len(self.index.shards):05}.safetensors"
        where = torch.tensor([start + numbers[place] for place in kept], dtype=torch.int64)
        write_shard(self.out / file, packed, numbers=where)
        for place in kept:
            source = part[numbers[place]].source
            self.index.counts[source] = self.index.counts.get(source, 0) + 1
        whole = len(found) == len(part)
        entry = {"file": file, "texts": len(packed), "tokens": packed.tokens.numel(), "prompts": name, "from": start}
        entry |= {"temperature": generator.temperature} if generator.sampled else {}
        self.index.shards.append(entry | {"whole": whole, "continuation_tokens": packed.continuation_tokens})
        self.index.write(self.out)
        new, seconds = packed.continuation_tokens, time.monotonic() - began
        self.say(f"text: {file}, {len(packed):,} texts, {new:,} new tokens, {new / seconds:,.0f} tokens/s")

    def _writer(self, prompts: Sequence[Sequence[int]], temperature: float) -> Generator:
        """The generator of texts, greedy ones at temperature 0; made anew only where these prompts are longer than
        those before, or tokens are drawn after greedy texts."""
        longest, sampled, made = max(map(len, prompts)), temperature > 0, self._generator
        if made is None or made.limits.prompt_tokens < longest or made.sampled != sampled:
            made = self._generator = None  # its cache goes first
            limits = Limits(min(len(prompts), self.options.batch), self.options.max_new_tokens, longest)
            stops = self.tokenizer.stop_tokens
            made = Generator(self.target, stops, limits, sampled=sampled, temperature=temperature or 1.0)
            self._generator = made
        return made

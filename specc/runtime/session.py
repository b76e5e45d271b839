"""A model ready to decode: spec and folders checked, the module generated and imported, the weights loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from specc.diagnostics import DiagnosticError, error
from specc.driver import compile_spec, module_info
from specc.runtime.generate import BatchResult, OnTokens, Request, batches, check_requests, decode_batch
from specc.runtime.lossless import LosslessReport, check_batch
from specc.runtime.model_folder import check_drafter, check_target, find_model
from specc.runtime.module import DecoderLike, GeneratedModule, import_source
from specc.runtime.perturb import SelfPerturbed, check_self_perturbed, parse_self_perturbed, perturbed_weights
from specc.runtime.prompts import Prompt
from specc.runtime.tokenizer import Message, Tokenizer
from specc.runtime.trace import RunIdentity, StepTrace
from specc.spec import LoadedSpec

Report = Callable[[str], None]
SourceOf = Callable[[LoadedSpec, str], str]


@dataclass(frozen=True, slots=True)
class Session:
    """One compiled spec with its weights. `drafter` describes the drafter's weights; `simulated` says what it is.

    `note` says what the figures of a run are not.
    """

    loaded: LoadedSpec
    module: GeneratedModule
    decoder: DecoderLike
    tokenizer: Tokenizer
    identity: RunIdentity
    model: Path
    drafter: str = ""
    simulated: bool = False
    note: str = ""


def open_session(
    loaded: LoadedSpec,
    model: str,
    draft_model: str | None = None,
    *,
    target: str = "reference",
    device: str = "cpu",
    ignore_eos: bool = False,
    report: Report = lambda _: None,
    source_of: SourceOf | None = None,
) -> Session:
    """Check, compile and load.

    A spec without stop tokens takes those of the model's folder (generation_config.json, else config.json), which
    become part of the compiled module; `ignore_eos` compiles it without any. `report` is told what begins. `source_of`
    gives the module's source instead of the compiler (from a cache). Raises DiagnosticError: what the parts raise,
    SPC412 for a drafter that is missing or not wanted.
    """
    folder = find_model(model)
    check_target(loaded, folder)
    drafter = _drafter(loaded, draft_model)
    tokenizer = Tokenizer.from_folder(folder)
    stop = () if ignore_eos else loaded.spec.accept.stop_tokens or tokenizer.stop_tokens
    loaded = with_stop_tokens(loaded, stop)
    report("compiling")
    source = compile_spec(loaded, target).source if source_of is None else source_of(loaded, target)
    module = import_source(source, f"specc_generated_{loaded.spec.name.replace('-', '_')}")
    options = _decoder_options(target, device)
    report("loading the weights")
    if isinstance(drafter, SelfPerturbed):
        decoder = module.Decoder(perturbed_weights(module, folder, drafter, device), device, **options)
    else:
        decoder = module.Decoder.from_pretrained(folder, drafter, device, **options)
    identity = RunIdentity(loaded.spec.sampling.seed, module.FINGERPRINT, module_info(loaded).pipeline)
    shown = "" if drafter is None else str(drafter)
    note = "eager npu ops on the CPU: no figure of an NPU" if options else ""
    simulated = isinstance(drafter, SelfPerturbed)
    return Session(loaded, module, decoder, tokenizer, identity, folder, shown, simulated, note)


def _decoder_options(target: str, device: str) -> dict[str, bool]:
    """On a CPU an Ascend module runs eagerly, with kernels of ours for the operators of torch_npu."""
    if target != "ascend" or device != "cpu":
        return {}
    from specc.backends.ascend.cpu import register  # the operators' schemas and kernels, for this target only

    register()
    return {"eager": True}


def _drafter(loaded: LoadedSpec, draft_model: str | None) -> Path | SelfPerturbed | None:
    """Where the drafter's weights come from, checked; None for methods without weights."""
    method = loaded.spec.draft.method
    if method not in ("draft_model", "eagle3", "bigram"):
        if draft_model is not None:
            message = f"`draft.method: {method}` has no weights to load"
            raise DiagnosticError([error("SPC412", message, help="leave --draft-model out")])
        return None
    if draft_model is None and loaded.draft_folder is None:
        message = f"`draft.method: {method}` needs the drafter's weights"
        simulated = "" if method != "draft_model" else ", or --draft-model self-perturbed:0.05 for a simulated one"
        help_text = f"give --draft-model DIR{simulated}"
        raise DiagnosticError([error("SPC412", message, loaded.source.span("draft", "method"), help=help_text)])
    perturbed = parse_self_perturbed(draft_model or "", loaded.spec.sampling.seed)
    if perturbed is not None:
        check_self_perturbed(loaded.spec)
        return perturbed
    folder = loaded.draft_folder if draft_model is None else find_model(draft_model)
    assert folder is not None
    check_drafter(loaded, folder)
    return folder


def with_stop_tokens(loaded: LoadedSpec, stop_tokens: Sequence[int]) -> LoadedSpec:
    """The spec with these stop tokens; the same object if it has them already."""
    if tuple(stop_tokens) == loaded.spec.accept.stop_tokens:
        return loaded
    accept = loaded.spec.accept.model_copy(update={"stop_tokens": tuple(stop_tokens)})
    return replace(loaded, spec=loaded.spec.model_copy(update={"accept": accept}))


@dataclass(slots=True)
class Conversation:
    """A prompt under way: the messages so far, and its turns that have not been answered."""

    prompt: Prompt
    messages: list[Message]
    turns: list[str]
    turn: int = 0

    def next_request(self, tokenizer: Tokenizer, number: int, *, raw: bool) -> Request:
        """The request for the next turn."""
        name = self.prompt.name if self.turn == 0 else f"{self.prompt.name}/{self.turn + 1}"
        text = self.turns.pop(0) if self.turns else ""
        self.turn += 1
        if raw and not text and self.messages:
            text = str(self.messages[-1]["content"])
        if raw or self.prompt.raw or (tokenizer.chat_template is None and not self.messages):
            return Request(number, name, tuple(tokenizer.encode(text)))
        if text:
            self.messages.append({"role": "user", "content": text})
        return Request(number, name, tuple(tokenizer.encode_chat(self.messages)))


@dataclass(slots=True)
class RunResult:
    """What a run produced."""

    batches: list[BatchResult] = field(default_factory=list)
    lossless: LosslessReport | None = None
    interrupted: bool = False

    @property
    def traces(self) -> Iterator[StepTrace]:
        """All steps, by batch and step, as they happened."""
        for batch in self.batches:
            found = [trace for result in batch.results for trace in result.traces]
            yield from sorted(found, key=lambda trace: (trace.step, trace.request))

    @property
    def names(self) -> dict[int, str]:
        """Request number -> its prompt's name."""
        return {result.request.number: result.request.name for batch in self.batches for result in batch.results}


class Watcher:
    """Told of a run as it goes; the default does nothing."""

    def batch_begins(self, requests: Sequence[Request]) -> None: ...

    def tokens(self, row: int, new: list[int]) -> None: ...

    def batch_ends(self, batch: BatchResult) -> None: ...

    def checking(self) -> None: ...


def run_prompts(
    session: Session,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    *,
    raw: bool = False,
    verify_lossless: bool = False,
    watcher: Watcher | None = None,
) -> RunResult:
    """Decode the prompts, turn by turn: the first turns of all prompts in batches, then the second ones, and so on.

    Ctrl-C ends the run; the result holds what was produced. Raises DiagnosticError: SPC414 for prompts that do not fit,
    SPC415 where a token-for-token check makes no sense.
    """
    if verify_lossless:
        _check_greedy(session)
    watcher = watcher or Watcher()
    result = RunResult(lossless=LosslessReport() if verify_lossless else None)
    open_now = [Conversation(prompt, list(prompt.messages), list(prompt.turns)) for prompt in prompts]
    number = 0
    while open_now and not result.interrupted:
        requests = []
        for talk in open_now:
            requests.append(talk.next_request(session.tokenizer, number, raw=raw))
            number += 1
        check_requests(requests, session.module)
        answers: dict[int, list[int]] = {}
        for group in batches(requests, session.module.MAX_BATCH_SIZE):
            batch = _run_batch(session, result, group, max_new_tokens, watcher)
            answers |= {item.request.number: item.tokens for item in batch.results}
            if batch.interrupted:
                result.interrupted = True
                break
        for talk, request in zip(open_now, requests, strict=True):
            text = session.tokenizer.decode(answers.get(request.number, []))
            talk.messages.append({"role": "assistant", "content": text})
        open_now = [talk for talk in open_now if talk.turns]
    return result


def _run_batch(
    session: Session, result: RunResult, group: Sequence[Request], max_new_tokens: int, watcher: Watcher
) -> BatchResult:
    """One batch, decoded and, where asked for, compared with plain decoding."""
    watcher.batch_begins(group)
    on_tokens: OnTokens = watcher.tokens
    batch = decode_batch(session.decoder, group, max_new_tokens, seed=session.identity.seed, on_tokens=on_tokens)
    result.batches.append(batch)
    watcher.batch_ends(batch)
    if result.lossless is not None and not batch.interrupted:
        watcher.checking()
        try:
            check_batch(result.lossless, session.module, session.decoder, batch, max_new_tokens, session.identity.seed)
        except KeyboardInterrupt:
            result.interrupted = True
        result.interrupted |= any(plain.interrupted for plain in result.lossless.plain)
    return batch


def _check_greedy(session: Session) -> None:
    accept = session.loaded.spec.accept
    if accept.method != "greedy":
        message = f"`accept.method: {accept.method}` draws its tokens: two texts of the same law differ"
        span = session.loaded.source.span("accept", "method")
        raise DiagnosticError([error("SPC415", message, span, help="`specc check` tests the law of its output")])

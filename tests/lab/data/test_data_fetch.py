"""Downloads end to end, from a server of our own; nothing half-done is ever left behind."""

import contextlib
import errno
import functools
import hashlib
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from adareg.cli import app
from adareg.lab import data
from adareg.lab.data import download
from adareg.lab.data.base import File
from fakes import downloads

IMAGES = "train-images-idx3-ubyte.gz"
CUT = object()


class Server:
    """Serves ``pages``: a path to its content, to (CUT, content), or to nothing, a 404."""

    def __init__(self):
        self.pages = {}
        self.asked = []

    def answer(self, request):
        self.asked.append(request.path)
        page = self.pages.get(request.path)
        if page is None:
            return request.send_error(404)
        cut = isinstance(page, tuple)
        content = page[1] if cut else page
        request.send_response(200)
        request.send_header("Content-Length", str(len(content) + (100 if cut else 0)))
        request.end_headers()
        with contextlib.suppress(ConnectionError):  # who asked may have had enough
            request.wfile.write(content)
        return None


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            made.answer(self)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        made.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield made
        http.shutdown()
        thread.join()


@pytest.fixture
def mnist(server, monkeypatch):
    contents = downloads.mnist()
    server.pages = {f"/{name}": content for name, content in contents.items()}
    downloads.expect(monkeypatch, "mnist", contents, lambda name: (f"{server.url}/{name}",))
    return contents


@pytest.fixture
def cifar10(server, monkeypatch):
    contents = downloads.cifar10()
    members = {f"cifar-10-batches-bin/{name}": content for name, content in contents.items()}
    packed = downloads.tar_gz({**members, "../evil": b"!", "cifar-10-batches-bin/x": b"?"})
    serve_archive(server, monkeypatch, contents, packed)
    return contents


def serve_archive(server, monkeypatch, contents, packed):
    server.pages = {"/a.tar.gz": packed}
    archive = File(
        name="a.tar.gz",
        size=len(packed),
        checksum="md5:" + hashlib.md5(packed).hexdigest(),
        urls=(f"{server.url}/a.tar.gz",),
    )
    downloads.expect(monkeypatch, "cifar10", contents, archive=archive)


def everything_below(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_what_is_fetched_can_be_loaded(mnist, server, tmp_path):
    written = data.fetch("mnist", tmp_path)
    assert everything_below(tmp_path) == sorted(f"mnist/{name}" for name in mnist)
    assert sorted(path.name for path in written) == sorted(mnist)
    assert data.load("mnist", tmp_path).n_train == 5
    assert data.fetch("mnist", tmp_path) == []
    assert len(server.asked) == 4


def test_only_what_is_missing_or_damaged_is_fetched(mnist, server, tmp_path):
    downloads.put({**mnist, IMAGES: b"damaged"}, tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    data.fetch("mnist", tmp_path)
    assert sorted(server.asked) == ["/t10k-labels-idx1-ubyte.gz", f"/{IMAGES}"]
    assert data.load("mnist", tmp_path).n_train == 5
    assert (tmp_path / IMAGES).read_bytes() == b"damaged"  # the user's own is left alone


def test_an_archive_gives_its_members_and_nothing_else(cifar10, tmp_path):
    data.fetch("cifar10", tmp_path / "d")
    assert everything_below(tmp_path) == sorted(f"d/cifar10/{name}" for name in cifar10)
    assert data.load("cifar10", tmp_path / "d").n_train == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: {**c, "test_batch.bin": b"other"},
            "holds another test_batch.bin: expected sha1",
        ),
        (lambda c: {n: v for n, v in c.items() if n != "test_batch.bin"}, "no test_batch.bin"),
    ],
)
def test_each_member_of_an_archive_is_verified(server, monkeypatch, tmp_path, change, message):
    contents = downloads.cifar10()
    serve_archive(server, monkeypatch, contents, downloads.tar_gz(change(contents)))
    with pytest.raises(data.DownloadError, match=message):
        data.fetch("cifar10", tmp_path)
    assert everything_below(tmp_path) == []


@pytest.mark.parametrize("cut", [lambda c: b"no archive", lambda c: c[: len(c) // 2]])
def test_what_cannot_be_unpacked_is_named(server, monkeypatch, tmp_path, cut):
    contents = downloads.cifar10()
    serve_archive(server, monkeypatch, contents, cut(downloads.tar_gz(contents)))
    with pytest.raises(data.DownloadError, match=r"a\.tar\.gz cannot be unpacked"):
        data.fetch("cifar10", tmp_path)
    assert everything_below(tmp_path) == []


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (None, f"/{IMAGES}: 404 Client Error: Not Found"),
        (b"an error page", "sent another file: expected sha256:.*13 bytes instead of"),
        ((CUT, b"half"), "4 bytes read, 100 more expected"),
        (bytes(2**22), f"/{IMAGES}: sent more than the [0-9,]+ bytes of the file"),
    ],
    ids=["absent", "wrong", "truncated", "endless"],
)
def test_a_bad_answer_leaves_nothing(mnist, server, tmp_path, page, message):
    server.pages[f"/{IMAGES}"] = page
    with pytest.raises(
        data.DownloadError, match=f"cannot download {IMAGES}: .*{message}"
    ) as caught:
        data.fetch("mnist", tmp_path)
    assert caught.match(f"can be put into {tmp_path}")
    assert everything_below(tmp_path) == []
    assert list((tmp_path / "mnist").iterdir()) == []


def test_another_address_is_tried(mnist, server, monkeypatch, tmp_path):
    server.pages |= {f"/bad/{name}": b"bad" for name in mnist}

    def urls(name):
        return tuple(f"{server.url}{part}/{name}" for part in ("/none", "/bad", ""))

    downloads.expect(monkeypatch, "mnist", mnist, urls)
    data.fetch("mnist", tmp_path)
    assert data.load("mnist", tmp_path).n_train == 5
    assert server.asked[:3] == [f"/none/{IMAGES}", f"/bad/{IMAGES}", f"/{IMAGES}"]


def test_an_interruption_keeps_what_is_complete(mnist, monkeypatch, tmp_path):
    whole = download._download

    def interrupted(file, folder, progress):
        if file.name != IMAGES:
            (folder / file.name).write_bytes(b"half")
            raise KeyboardInterrupt
        return whole(file, folder, progress)

    monkeypatch.setattr(download, "_download", interrupted)
    with pytest.raises(KeyboardInterrupt):
        data.fetch("mnist", tmp_path)
    assert everything_below(tmp_path) == [f"mnist/{IMAGES}"]


class Bar:
    def __init__(self, seen, name):
        self.seen, self.name, self.done, self.total = seen, name, 0, None

    def update(self, n):
        self.done += n

    def reset(self):
        self.done = 0

    def close(self):
        self.seen[self.name] = (self.done, self.total)


def test_progress_is_reported(mnist, tmp_path):
    seen = {}
    data.fetch("mnist", tmp_path, functools.partial(Bar, seen))
    assert seen == {name: (len(content), len(content)) for name, content in mnist.items()}


def run(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


def one_line_error(result):
    assert result.exit_code == 1, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_fetch_check_and_list_on_the_command_line(mnist, tmp_path):
    missing = run("check", "mnist", "--data", tmp_path)
    assert missing.exit_code == 1
    assert missing.stdout.count("  missing ") == 4
    fetched = run("fetch", "mnist", "--data", tmp_path)
    assert fetched.exit_code == 0, fetched.output
    assert fetched.stdout == f"mnist: wrote 4 files to {tmp_path / 'mnist'}\n"
    assert run("fetch", "mnist", "--data", tmp_path).stdout == "mnist: already here\n"
    checked = run("check", "mnist", "--data", tmp_path)
    assert (checked.exit_code, checked.stdout.count("  ok ")) == (0, 4)
    (tmp_path / "mnist" / IMAGES).write_bytes(b"")
    for names in (["mnist"], []):
        damaged = run("check", *names, "--data", tmp_path)
        assert damaged.exit_code == 1
        assert f"  bad     {IMAGES}  {tmp_path}" in damaged.stdout
    listed = run("list", "--data", tmp_path).stdout
    for name, source in data.DATASETS.items():
        (line,) = [li for li in listed.splitlines() if li.split()[:1] == [name]]
        assert source.task in line
        assert source.sizes in line
    assert "damaged" in listed
    assert "embedded" in listed


def test_missing_is_wrong_only_if_named(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAREG_DATA", str(tmp_path))
    assert run("check").exit_code == 0
    assert run("check", "digits").exit_code == 0
    assert run("check", "digits", "cifar10").exit_code == 1


def test_all_that_can_be_is_fetched(mnist, server, monkeypatch, tmp_path):
    few = {name: data.DATASETS[name] for name in ("digits", "sarcos", "mnist")}
    monkeypatch.setattr(data, "DATASETS", few)
    downloads.expect(monkeypatch, "sarcos", {}, lambda name: (f"{server.url}/none",))
    result = run("fetch", "--data", tmp_path)
    assert "error: sarcos: cannot download sarcos_inv.mat" in one_line_error(result)
    assert "mnist: wrote 4 files" in result.stdout
    assert "digits" not in result.stdout
    assert run("fetch", "digits").stdout == "digits: comes with scikit-learn\n"


def test_no_network(monkeypatch, tmp_path):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        url = f"http://127.0.0.1:{closed.server_port}/x"
    downloads.expect(monkeypatch, "mnist", downloads.mnist(), lambda name: (url,))
    line = one_line_error(run("fetch", "mnist", "--data", tmp_path))
    assert f"{url}: " in line
    assert "Connection refused" in line


def test_a_directory_that_cannot_be_written(mnist, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    line = one_line_error(run("fetch", "mnist", "--data", tmp_path / "file"))
    assert f"cannot write to {tmp_path / 'file' / 'mnist'}: Not a directory" in line


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "No space left on device"), (errno.EROFS, "Read-only file system")],
)
def test_a_full_or_read_only_disk(mnist, monkeypatch, tmp_path, number, message):
    def fail(*args, **kwargs):
        raise OSError(number, message)

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", fail)
    line = one_line_error(run("fetch", "mnist", "--data", tmp_path))
    assert line == f"error: mnist: cannot write to {tmp_path / 'mnist'}: {message}"
    assert everything_below(tmp_path) == []


def test_a_missing_package_is_one_line_too(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pooch", None)
    for command in (["list"], ["check"], ["fetch", "mnist", "--data", tmp_path]):
        assert "pip install '.[lab]'" in one_line_error(run(*command))


def test_unknown_names_are_refused():
    for command in ("check", "fetch"):
        result = run(command, "mnist", "mnst")
        assert result.exit_code == 2
        assert "'mnst'" in result.stderr

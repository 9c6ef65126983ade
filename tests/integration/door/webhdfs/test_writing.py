"""Operations that change the tree, as raw requests; what is said of them is held against the origin."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from tests.integration.cli.host import wait_until
from tests.integration.door.webhdfs.conftest import WRITE, WebHdfs

DATA = random.Random(5).randbytes((3 << 20) + 17)


def boolean(answer: requests.Response) -> bool:
    assert answer.status_code == 200, answer.text
    return bool(answer.json()["boolean"])


def test_a_file_is_made_and_persisted(webhdfs: WebHdfs) -> None:
    path = f"/{WRITE}/made/deep/er.bin"
    answer = webhdfs.put(path, DATA, permission="640")
    assert (answer.status_code, answer.content) == (201, b"")
    assert answer.headers["Location"] == f"webhdfs://{urlsplit(webhdfs.url).netloc}{path}"
    assert webhdfs.bytes_of(path) == DATA
    assert webhdfs.bytes_of(path, offset=100, length=7) == DATA[100:107]
    assert webhdfs.get(path, "GETFILESTATUS")["FileStatus"]["permission"] == "640"
    webhdfs.wait_persisted("made/deep/er.bin", DATA)
    again = webhdfs.put(path, b"other")
    assert webhdfs.failure(again) == ("FileAlreadyExistsException", 403)
    assert webhdfs.put(path, b"other", overwrite="true").status_code == 201
    assert webhdfs.bytes_of(path) == b"other"
    webhdfs.wait_persisted("made/deep/er.bin", b"other")


def test_where_to_send_it_is_told_without_a_redirect(webhdfs: WebHdfs) -> None:
    path = f"/{WRITE}/noredirect.bin"
    answer = webhdfs.ask("PUT", path, "CREATE", noredirect="true")
    assert answer.status_code == 200
    assert webhdfs.ask("GET", path, "GETFILESTATUS").status_code == 404
    assert requests.put(answer.json()["Location"], data=iter([DATA, DATA]), timeout=60).status_code == 201
    assert webhdfs.bytes_of(path) == DATA + DATA
    more = webhdfs.ask("POST", path, "APPEND", noredirect="true")
    assert requests.post(more.json()["Location"], data=b"end", timeout=60).status_code == 200
    assert webhdfs.bytes_of(path) == DATA + DATA + b"end"


def test_flags_of_a_create(webhdfs: WebHdfs) -> None:
    orphan = webhdfs.put(f"/{WRITE}/no/folder/x", b"x", createparent="false")
    assert webhdfs.failure(orphan) == ("FileNotFoundException", 404)
    assert webhdfs.put(f"/{WRITE}/flags", b"1", createflag="CREATE,OVERWRITE").status_code == 201
    assert webhdfs.put(f"/{WRITE}/flags", b"2", createflag="CREATE,OVERWRITE").status_code == 201
    assert webhdfs.bytes_of(f"/{WRITE}/flags") == b"2"
    folder = webhdfs.put(f"/{WRITE}", b"", overwrite="true")
    assert webhdfs.failure(folder) == ("FileAlreadyExistsException", 403)


def test_a_body_that_breaks_off_leaves_nothing(webhdfs: WebHdfs) -> None:
    path = f"/{WRITE}/broken.bin"
    for framing in ("Content-Length: 1000000", "Transfer-Encoding: chunked"):
        head = f"PUT /webhdfs/v1{path}?op=CREATE&data=true HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n"
        body = b"5\r\nabcde\r\n" if "chunked" in framing else b"abcde"
        with socket.create_connection(webhdfs.address, timeout=60) as connection:
            connection.sendall(head.encode() + body)
    # and one whose framing is nonsense, which is answered
    head = f"PUT /webhdfs/v1{path}?op=CREATE&data=true HTTP/1.1\r\nHost: localhost\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n"
    assert webhdfs.raw(head.encode() + b"zz\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert webhdfs.ask("GET", path, "GETFILESTATUS").status_code == 404
    assert [name for name in os.listdir(webhdfs.origin) if "broken" in name] == []


def test_appends(webhdfs: WebHdfs) -> None:
    path = f"/{WRITE}/grows.bin"
    assert webhdfs.failure(webhdfs.ask("POST", path, "APPEND")) == ("FileNotFoundException", 404)
    webhdfs.put(path, b"begin ")
    for piece in (b"middle ", DATA, b" end"):
        assert webhdfs.append(path, piece).status_code == 200
    whole = b"begin middle " + DATA + b" end"
    assert webhdfs.bytes_of(path) == whole
    webhdfs.wait_persisted("grows.bin", whole)
    assert webhdfs.append(path, b"!").status_code == 200  # to what the origin has by now
    assert webhdfs.bytes_of(path) == whole + b"!"
    webhdfs.wait_persisted("grows.bin", whole + b"!")


def test_an_append_that_breaks_off_is_cut_off_again(webhdfs: WebHdfs) -> None:
    path = f"/{WRITE}/cut.bin"
    webhdfs.put(path, b"kept")
    head = f"POST /webhdfs/v1{path}?op=APPEND&data=true HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n\r\n"
    with socket.create_connection(webhdfs.address, timeout=60) as connection:
        connection.sendall(head.encode() + DATA)
        wait_until(lambda: len(webhdfs.bytes_of(path)) > 4, 10, hint=lambda: "others see what was appended")
        assert webhdfs.failure(webhdfs.append(path, b"x")) == ("AlreadyBeingCreatedException", 403)
    wait_until(lambda: webhdfs.bytes_of(path) == b"kept", 10, hint=lambda: "nothing of the append is left")
    webhdfs.wait_persisted("cut.bin", b"kept")


def test_truncates(webhdfs: WebHdfs) -> None:
    path = f"/{WRITE}/shrinks.bin"
    webhdfs.put(path, DATA)
    webhdfs.wait_persisted("shrinks.bin", DATA)
    assert boolean(webhdfs.ask("POST", path, "TRUNCATE", newlength=1000))
    assert webhdfs.bytes_of(path) == DATA[:1000]
    webhdfs.wait_persisted("shrinks.bin", DATA[:1000])
    longer = webhdfs.ask("POST", path, "TRUNCATE", newlength=1001)
    assert webhdfs.failure(longer) == ("IllegalArgumentException", 400)
    assert webhdfs.failure(webhdfs.ask("POST", path, "TRUNCATE")) == ("IllegalArgumentException", 400)


def test_folders(webhdfs: WebHdfs) -> None:
    top = f"/{WRITE}/folders"
    assert boolean(webhdfs.ask("PUT", f"{top}/a/b", "MKDIRS", permission="700"))
    assert boolean(webhdfs.ask("PUT", f"{top}/a/b", "MKDIRS"))
    assert webhdfs.get(f"{top}/a/b", "GETFILESTATUS")["FileStatus"]["permission"] == "700"
    assert webhdfs.get(f"{top}/a", "GETFILESTATUS")["FileStatus"]["permission"] == "755"
    webhdfs.put(f"{top}/file", b"x")
    over = webhdfs.ask("PUT", f"{top}/file", "MKDIRS")
    assert webhdfs.failure(over) == ("FileAlreadyExistsException", 403)
    below = webhdfs.ask("PUT", f"{top}/file/below", "MKDIRS")
    assert webhdfs.failure(below) == ("ParentNotDirectoryException", 403)
    full = webhdfs.ask("DELETE", top, "DELETE")
    assert webhdfs.failure(full) == ("PathIsNotEmptyDirectoryException", 403)
    wait_until(lambda: (webhdfs.origin / "folders/a/b").is_dir(), 20, hint=lambda: "folders at the origin")
    assert boolean(webhdfs.ask("DELETE", f"{top}/a/b", "DELETE"))
    assert boolean(webhdfs.ask("DELETE", top, "DELETE", recursive="true"))
    assert not boolean(webhdfs.ask("DELETE", top, "DELETE", recursive="true"))
    wait_until(lambda: not (webhdfs.origin / "folders").exists(), 20, hint=lambda: "gone at the origin")


def test_renames_that_answer_true_or_false(webhdfs: WebHdfs) -> None:
    """FileSystem.rename(src, dst): into a folder, never over anything."""
    top = f"/{WRITE}/renames"
    for name in ("one", "two", "folder/inside", "other/one"):
        webhdfs.put(f"{top}/{name}", name.encode())

    def rename(source: str, target: str) -> bool:
        return boolean(webhdfs.ask("PUT", f"{top}/{source}", "RENAME", destination=f"{top}/{target}"))

    assert not rename("nothing", "x")
    assert not rename("one", "two")
    assert not rename("one", "other")  # there is other/one
    assert not rename("one", "no/folder")
    assert not rename("one", "two/below")
    assert not rename("folder", "folder/in/itself")
    assert not rename("folder", "folder")
    assert rename("one", "one")
    assert rename("one", "moved")
    assert rename("moved", "folder")
    assert rename("folder", "other")
    assert webhdfs.bytes_of(f"{top}/other/folder/moved") == b"one"
    assert webhdfs.bytes_of(f"{top}/other/folder/inside") == b"folder/inside"
    assert webhdfs.bytes_of(f"{top}/two") == b"two"
    webhdfs.wait_persisted("renames/other/folder/moved", b"one")


def test_renames_with_options(webhdfs: WebHdfs) -> None:
    top = f"/{WRITE}/options"
    for name in ("one", "two", "folder/inside"):
        webhdfs.put(f"{top}/{name}", name.encode())

    def rename(source: str, target: str, options: str = "NONE") -> tuple[str, int]:
        query = {"destination": f"{top}/{target}", "renameoptions": options}
        answer = webhdfs.ask("PUT", f"{top}/{source}", "RENAME", **query)
        return ("", 200) if answer.status_code == 200 else webhdfs.failure(answer)

    assert rename("nothing", "x") == ("FileNotFoundException", 404)
    assert rename("one", "two") == ("FileAlreadyExistsException", 403)
    assert rename("one", "one") == ("FileAlreadyExistsException", 403)
    assert rename("one", "no/x") == ("FileNotFoundException", 404)
    assert rename("one", "two/x") == ("ParentNotDirectoryException", 403)
    assert rename("folder", "folder/x") == ("IOException", 403)
    assert rename("one", "folder", "OVERWRITE") == ("FileAlreadyExistsException", 403)
    assert rename("one", "two", "OVERWRITE") == ("", 200)
    assert webhdfs.bytes_of(f"{top}/two") == b"one"
    assert webhdfs.ask("GET", f"{top}/one", "GETFILESTATUS").status_code == 404
    webhdfs.wait_persisted("options/two", b"one")


def test_attributes(webhdfs: WebHdfs) -> None:
    path = f"/{WRITE}/attributes"
    webhdfs.put(path, b"x")
    assert webhdfs.ask("PUT", path, "SETPERMISSION", permission="751").status_code == 200
    assert webhdfs.ask("PUT", path, "SETOWNER", owner="daemon", group="daemon").status_code == 200
    times = {"modificationtime": 1_500_000_000_123, "accesstime": -1}
    assert webhdfs.ask("PUT", path, "SETTIMES", **times).status_code == 200
    about = webhdfs.get(path, "GETFILESTATUS")["FileStatus"]
    attributes = (about["permission"], about["owner"], about["group"], about["modificationTime"])
    assert attributes == ("751", "daemon", "daemon", 1_500_000_000_123)
    for name in ("nobody-knows-me", "a\0b", str(2**32 - 1), "1" * 5000, "١"):
        stranger = webhdfs.ask("PUT", path, "SETOWNER", owner=name)
        assert webhdfs.failure(stranger) == ("IllegalArgumentException", 400), name
    assert webhdfs.failure(webhdfs.ask("PUT", path, "SETPERMISSION", permission="9"))[1] == 400
    assert not boolean(webhdfs.ask("PUT", path, "SETREPLICATION", replication=3))
    for op in ("SETPERMISSION", "SETTIMES"):
        gone = webhdfs.ask("PUT", f"{path}-gone", op, modificationtime=1)
        assert webhdfs.failure(gone) == ("FileNotFoundException", 404)

    def kept() -> bool:
        with contextlib.suppress(FileNotFoundError):
            stat = (webhdfs.origin / "attributes").stat()
            return (stat.st_mode & 0o777, stat.st_mtime_ns // 10**6) == (0o751, 1_500_000_000_123)
        return False

    wait_until(kept, 20, hint=lambda: "attributes at the origin")


@pytest.mark.expected_warnings("requests of web pages are refused")
def test_pages_of_the_web_are_refused(webhdfs: WebHdfs) -> None:
    path = f"/{WRITE}/page.bin"
    webhdfs.put(path, b"kept")
    for method, op in (("POST", "TRUNCATE&newlength=0"), ("DELETE", "DELETE"), ("GET", "OPEN&offset=0")):
        url = f"{webhdfs.url}/webhdfs/v1{path}?op={op}"
        answer = requests.request(method, url, headers={"Origin": "http://evil.example"}, timeout=60)
        assert webhdfs.failure(answer) == ("AccessControlException", 403)
    assert webhdfs.bytes_of(path) == b"kept"


@pytest.mark.parametrize("attempt", range(3))
def test_of_two_who_rename_to_one_name_one_is_told_true(webhdfs: WebHdfs, attempt: int) -> None:
    """Committers of Hadoop rely on this."""
    top = f"/{WRITE}/race-{attempt}"
    for name in ("a", "b"):
        webhdfs.put(f"{top}/{name}", name.encode())
    said: dict[str, bool] = {}
    begin = threading.Barrier(2)

    def rename(name: str) -> None:
        begin.wait()
        said[name] = boolean(webhdfs.ask("PUT", f"{top}/{name}", "RENAME", destination=f"{top}/committed"))

    threads = [threading.Thread(target=rename, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (winner,) = [name for name, won in said.items() if won]
    (loser,) = [name for name, won in said.items() if not won]
    assert webhdfs.bytes_of(f"{top}/committed") == winner.encode()
    assert webhdfs.bytes_of(f"{top}/{loser}") == loser.encode()


def test_curl_as_the_specification_has_it(webhdfs: WebHdfs, tmp_path: Path) -> None:
    """It sends the file with the first request, too, and asks before whether it may."""
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("server: curl is not installed")
    (tmp_path / "file").write_bytes(DATA)
    for op, verb in (("CREATE", "PUT"), ("APPEND", "POST")):
        url = f"{webhdfs.url}/webhdfs/v1/{WRITE}/curl.bin?op={op}"
        words = [curl, "-sS", "-f", "-L", "-X", verb, "-T", str(tmp_path / "file"), url]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
    assert webhdfs.bytes_of(f"/{WRITE}/curl.bin") == DATA + DATA

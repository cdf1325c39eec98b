"""A library that crashes, hangs or takes memory while it works on a picture ends its own process and nothing else.

No picture is known that makes this Pillow do so, hence signals: a process that is stopped does not answer, and one that
gets SIGSEGV ends as by a fault of its own.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image
from tests.support.http_app import AppClient, assert_problem, http_app

from tensorpost.bodies.images import EncodedImage, open_image
from tensorpost.values.problems import LibraryFailed
from tensorpost_server.child_processes.pictures import PICTURES, decode_picture

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")

COPY = "/v1/operators/tile?repeats=1,1,1,1"
PNG = {"content-type": "image/png"}


@pytest.fixture
def app() -> Iterator[AppClient]:
    with http_app(backend="numpy", picture_processes=1, picture_seconds=5) as client:
        assert client.post(COPY, picture(1), PNG).status_code == 200  # which starts the process
        yield client


def picture(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def later(seconds: float, pid: int, *signals: signal.Signals) -> threading.Thread:
    def send() -> None:
        time.sleep(seconds)
        for each in signals:
            os.kill(pid, each)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_a_crash_is_the_callers_error_and_a_second_one_is_not_tried(app: AppClient):
    for _ in range(2):
        (pid,) = PICTURES.pids
        os.kill(pid, signal.SIGSTOP)
        sender = later(0.3, pid, signal.SIGSEGV, signal.SIGCONT)
        problem = assert_problem(app.post(COPY, picture(2), PNG), 422, "library-failed")
        sender.join()
        assert (problem["reason"], problem["ended_by"]) == ("ended", "SIGSEGV")
        assert pid not in PICTURES.pids
        assert app.post(COPY, picture(3), PNG).status_code == 200
    problem = assert_problem(app.post(COPY, picture(2), PNG), 422, "library-failed")
    assert problem["reason"] == "refused"


def test_a_process_that_does_not_answer_is_ended(app: AppClient):
    PICTURES.seconds = 0.5
    (pid,) = PICTURES.pids
    os.kill(pid, signal.SIGSTOP)

    problem = assert_problem(app.post(COPY, picture(4), PNG), 413, "limit-exceeded")
    assert problem["setting"] == "TENSORPOST_PICTURE_SECONDS"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    PICTURES.seconds = 5
    assert app.post(COPY, picture(5), PNG).status_code == 200


def test_memory_beyond_what_the_head_announces_is_refused(app: AppClient):
    """As a decoder would take that does not keep to its head."""
    del app
    file = io.BytesIO()
    Image.fromarray(np.zeros((8000, 8000), np.uint8)).save(file, "PNG")
    image = open_image(file.getvalue())
    lying = EncodedImage("the body", image.content, "PNG", 8, 8, 1, 8, 1)

    with pytest.raises(LibraryFailed, match="needed more memory"):
        decode_picture(lying)

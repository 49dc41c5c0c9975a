"""Servers of S3 and Google Cloud Storage on the loopback address, for tests of buckets."""

import contextlib
import http
import logging
import os
import secrets
import unittest
from collections.abc import Iterator
from typing import Any
from unittest import mock

try:
    import fsspec
    import s3fs  # noqa: F401
    import upath  # noqa: F401
    from gcp_storage_emulator import exceptions
    from gcp_storage_emulator.handlers import objects
    from gcp_storage_emulator.server import create_server
    from moto.server import ThreadedMotoServer
except ImportError as error:
    raise unittest.SkipTest(f"no servers of buckets: {error} (extra [dev])") from error

_upload = objects._multipart_upload


@contextlib.contextmanager
def s3() -> Iterator[str]:
    """Serve S3; yield the URL of an empty bucket for this process and its children."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    variables = {
        "AWS_ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port()),
        "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    with _reached(server, variables, "s3") as url:
        yield url


@contextlib.contextmanager
def gcs() -> Iterator[str]:
    """Serve Google Cloud Storage; see `s3`."""
    # It takes one connection at a time; gcsfs opens more than may wait by default.
    with mock.patch("socketserver.TCPServer.request_queue_size", 1024):
        server = create_server("127.0.0.1", 0, in_memory=True)
        server.start()
    objects._multipart_upload = _conditional_upload
    port = server._api._httpd.server_address[1]
    variables = {
        "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false", "FSSPEC_GCS": '{"token": "anon"}',
    }  # fmt: skip
    with _reached(server, variables, "gs") as url:
        yield url


def _conditional_upload(request: Any, response: Any, storage: Any) -> None:
    """Upload an object like the emulator, but refuse to overwrite if its generation must be 0."""
    name = request.data["meta"]["name"]
    if request.query.get("ifGenerationMatch") == ["0"]:
        with contextlib.suppress(exceptions.NotFound):
            storage.get_file_obj(request.params["bucket_name"], name)
            response.status = http.HTTPStatus.PRECONDITION_FAILED
            return
    _upload(request, response, storage)


@contextlib.contextmanager
def _reached(server: Any, variables: dict[str, str], scheme: str) -> Iterator[str]:
    """Yield the URL of an empty bucket; stop the server at the end of the block."""
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        stack.enter_context(mock.patch.dict(os.environ, variables))
        fsspec.config.set_conf_env(fsspec.config.conf)
        fsspec.get_filesystem_class(scheme).clear_instance_cache()  # of another server
        bucket = f"bucket{secrets.token_hex(8)}"  # servers of one process share their buckets
        fsspec.filesystem(scheme).mkdir(bucket)
        yield f"{scheme}://{bucket}"

# Copyright (c) 2026 the gen_engine authors. MIT License, the text at the head of gen_engine.py.
"""Images that a message names by a URL, as OpenAI's messages do: a companion of gen_engine.py.

Copy both into your repository, `make vendor DEST=acme/llm WITH="image_urls"`, and write

    url = "data:image/png;base64,..."
    chat = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    engine.generate_vlm_batch([{"messages": chat}])

gen_engine finds this file beside itself. Without it, images are PIL images, paths and bytes.
"""

from __future__ import annotations

import base64
import os
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or not __package__:
    import gen_engine as ge
else:  # the copy beside this file, whatever others the process has
    from . import gen_engine as ge

__version__ = "0.3.1"

__all__ = ["open_url"]


def data_url_bytes(url: str) -> bytes:
    """The bytes of a data: URL. Raises ImageError."""
    header, comma, payload = url.partition(",")
    if not comma:
        raise ge.ImageError("data: URL without a comma", fix="write data:image/png;base64,...")
    with ge.wrapping_errors(ge.ImageError, "data: URL is not base64", "encode the file's bytes"):
        raw = urllib.parse.unquote_to_bytes(payload)
        if header.endswith(";base64"):
            raw = base64.b64decode(raw, validate=True)
    return raw


def local_path(url: str, root: str | os.PathLike[str] | None) -> str:
    """The path of a file: URL, which lies under `root`. Raises ImageError."""
    with ge.wrapping_errors(ge.ImageError, f"{ge.short_repr(url)} is no path", "name a file"):
        path = urllib.parse.unquote(urllib.parse.urlsplit(url).path)
    return str(ge.path_under(root, path))


def open_url(
    url: str,
    loader: Callable[[str], Any] | None,
    root: str | os.PathLike[str] | None,
) -> Any:
    """The bytes of a data: URL, the path of a file: URL, what `loader` returns for a remote one.
    Raises ImageError."""
    if url.startswith("data:"):
        return data_url_bytes(url)
    if url.lower().startswith("file:"):
        return local_path(url, root)
    if loader is None:
        problem = f"remote image {url[:80]!r} refused"
        raise ge.ImageError(problem, fix="pass image_loader, or load the bytes")
    with ge.wrapping_errors(ge.ImageError, f"image_loader failed on {url[:80]!r}", "see the cause"):
        return loader(url)

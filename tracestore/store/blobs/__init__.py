"""A payload by its hash: bytes -> a folder or object storage, apart for every project.

What lies in the blob store is the only truth about which bytes are there; rows of the database say which are
wanted (`blob` events). So a payload and its event may come in either order, a payload needs no write lock of
the database, and nothing can disagree.

Bytes come in through `Uploads`: to a local file first, whatever the store, so that nothing is ever visible,
here or in a bucket, before all of it has come and hashes to its name.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import make_url

from tracestore.store.blobs.base import BadBlobStore, Blobs
from tracestore.store.blobs.folder import FolderBlobs

__all__ = ["Blobs", "default_blobs", "open_blobs"]


def open_blobs(where: str) -> Blobs:
    """The blob store at a place.

    Args:
        where: a folder, made when first written to, or `s3://BUCKET/PREFIX`, where `?endpoint=URL` names a
            server other than Amazon's and `?region=NAME` a region. Credentials come from where the tools of
            Amazon look for them: the environment, `~/.aws`.

    Raises:
        BadBlobStore: no such place, or no access to it.
    """
    scheme = urlsplit(where).scheme if "://" in where else ""
    if scheme == "s3":
        # It takes a quarter of a second to load, and an extra to install.
        from tracestore.store.blobs.objects import ObjectBlobs

        return ObjectBlobs.open(where)
    if scheme:
        raise BadBlobStore(where=where, hint="name a folder, or s3://BUCKET/PREFIX")
    folder = Path(where).absolute()
    if folder.exists() and not folder.is_dir():
        raise BadBlobStore(where=where, hint="this is a file: name a folder")
    if not folder.parent.is_dir():
        raise BadBlobStore(where=where, hint=f"there is no folder {folder.parent}")
    return FolderBlobs(folder)


def default_blobs(db_url: str) -> str | None:
    """The folder beside a SQLite file in which its blobs are kept; None where a place has to be named."""
    url = make_url(db_url)
    return f"{url.database}.blobs" if url.get_backend_name() == "sqlite" else None

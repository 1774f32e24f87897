"""What a harness can get wrong about the proxy, and what an upstream can do to it."""

from __future__ import annotations

from typing import ClassVar

from tracestore.errors import TracestoreError


class BadUpstream(TracestoreError):
    """This is no URL of an upstream"""

    exit_code: ClassVar[int] = 2


class UnknownName(TracestoreError):
    """The path before the upstream's own states something that cannot be used"""

    status: ClassVar[int] = 404


class UpstreamUnreachable(TracestoreError):
    """The upstream did not answer"""

    status: ClassVar[int] = 502

"""tracestore: the database between agent harness and trainer, exact to the byte and to the token."""

__version__ = "0.1.0"

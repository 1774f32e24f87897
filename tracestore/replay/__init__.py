"""Recorded episodes -> the answers that a running harness gets again, exactly, and where it diverges."""

"""The `tracestore` command: one file per verb."""

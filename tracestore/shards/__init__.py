"""The file contract between exporter and trainer: Arrow shards of whole groups, and their manifest."""

"""graph -> samples -> shards: every sampled token is trained exactly once or excluded with a reason."""

"""Files on disk -> wire events: one module a format, pure generators that know nothing of a store."""

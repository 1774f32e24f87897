"""Wire events -> the message graph in memory. Pure: no I/O, no clock, no order of arrival."""

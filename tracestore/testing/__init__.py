"""For the tests of harnesses: recorded on the first run, replayed afterwards."""

"""Shards -> rows -> credit -> loss -> weights. The only place with torch; imports shards only."""

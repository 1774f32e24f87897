"""The HTTP service: posted events -> store, and reads of what is stored."""

"""What a harness posts: frozen Pydantic events; messages, tools and parameters are opaque JSON spans."""

"""The recording proxy: what a harness and a model say to each other -> events, without either noticing."""

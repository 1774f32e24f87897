"""A store in Python, for analysts: frames, SQL, and episodes as graphs and pictures (`tracestore.open`)."""

"""Graph without token ids -> graph with the ids that a chat template gives it, marked as rendered."""

"""What a capture observes of the memory of a step."""

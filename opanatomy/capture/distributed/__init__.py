"""Share a step between processes: joined, prepared and agreed on by Accelerate."""

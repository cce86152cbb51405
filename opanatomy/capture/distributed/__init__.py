"""A step that several processes share: joined, prepared and agreed on by Accelerate."""

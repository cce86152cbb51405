"""From an id, a configuration or a function to a module with weights and a batch for it."""

"""Make a module with weights and a batch from an id, a configuration or a function."""

"""What each training technique would do to a model: predicted from a run of the baseline, then measured."""

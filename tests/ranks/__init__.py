"""Several ranks: one report of all, launchers, clusters, collectives of real ranks."""

"""Where offers come from: one adapter a provider."""

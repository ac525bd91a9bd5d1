"""Sources of offers: one adapter a provider."""

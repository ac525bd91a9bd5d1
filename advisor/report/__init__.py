"""Show results to people: the only modules, beside the verbs, that know of terminals."""

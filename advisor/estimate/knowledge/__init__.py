"""Knowledge behind an estimate: laws, layout models, runs, learned corrections."""

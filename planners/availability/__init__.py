"""SAS: which nodes of a shared cluster a job's workers go to, by what will be free on them."""

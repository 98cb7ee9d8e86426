"""`joblens run`: the command runs undisturbed while a second process samples it."""

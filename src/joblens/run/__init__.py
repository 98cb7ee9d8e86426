"""`joblens run`: the command runs as if alone; a second process looks on."""

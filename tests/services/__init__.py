"""Tests against the real thing: servers, processes and cgroups of the machine that they run on."""

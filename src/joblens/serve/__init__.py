"""The read service: who is asking, what they may see, and the answers over HTTP."""

"""Batches from and to Kafka."""

"""Kafka: batches to and from topics, rows as messages."""

"""Against a real Kafka broker, or where none can be had against librdkafka's mock of one."""

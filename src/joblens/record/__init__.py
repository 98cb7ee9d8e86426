"""What is known of a job, as types: its facts, its end, and the record that every report is made from.

Each field is described where it is declared. The JSON Schema (`joblens schema`) and the tables of docs/api.md
are generated from these declarations.
"""

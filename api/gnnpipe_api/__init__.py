"""The job: spec, validation, plan, CRD schema. pydantic only."""

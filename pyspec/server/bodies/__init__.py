"""Bodies of requests. Their fields are also what ``/openapi.json`` says, so that nothing is written twice."""

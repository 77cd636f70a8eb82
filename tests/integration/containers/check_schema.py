"""
check_schema.py SCHEMA MANIFEST: a manifest against the schema of a custom resource, by the Python of build/kubernetes.

Fields that the schema does not have are errors: a server would drop them in silence.
"""
import json
import sys

import jsonschema
import yaml


def strict(schema):
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if schema.get("type") == "object" and "properties" in schema else {}
    return {key: strict(value) for key, value in schema.items()} | closed


def main():
    with open(sys.argv[1]) as file:
        schema = strict(json.load(file))
    schema["properties"]["metadata"] = {"type": "object"}  # checked by the server itself
    with open(sys.argv[2]) as file:
        errors = list(jsonschema.Draft202012Validator(schema).iter_errors(yaml.safe_load(file)))
    for error in errors:
        print(f"{error.json_path}: {error.message}")
    sys.exit(bool(errors))


if __name__ == "__main__":
    main()

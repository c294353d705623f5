"""The manifest of the page on many machines is one that the KubeRay operator takes, and says what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]

# The part of ray.io/v1 RayCluster that the manifest uses; the operator refuses an unknown field.
ENV = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "value": {"type": "string"},
        "valueFrom": {
            "type": "object",
            "required": ["secretKeyRef"],
            "properties": {"secretKeyRef": {"type": "object", "required": ["name", "key"]}},
        },
    },
}
QUANTITIES = {"type": "object", "additionalProperties": {"type": "string", "pattern": r"^\d+(Gi|Mi)?$"}}
POD = {
    "type": "object",
    "required": ["spec"],
    "additionalProperties": False,
    "properties": {
        "spec": {
            "type": "object",
            "required": ["containers"],
            "additionalProperties": False,
            "properties": {
                "containers": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["name", "image", "resources"],
                        "additionalProperties": False,
                        "properties": {
                            "name": {"type": "string"},
                            "image": {"type": "string"},
                            "env": {"type": "array", "items": ENV},
                            "resources": {
                                "type": "object",
                                "properties": {"limits": QUANTITIES, "requests": QUANTITIES},
                            },
                            "volumeMounts": {"type": "array"},
                        },
                    },
                },
                "volumes": {"type": "array", "items": {"type": "object", "required": ["name"]}},
            },
        }
    },
}
PARAMETERS = {"type": "object", "additionalProperties": {"type": "string"}}  # numbers are strings here
COUNT = {"type": "integer", "minimum": 0}
RAY_CLUSTER = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayCluster"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object",
            "required": ["headGroupSpec"],
            "additionalProperties": False,
            "properties": {
                "rayVersion": {"type": "string"},
                "headGroupSpec": {
                    "type": "object",
                    "required": ["template"],
                    "additionalProperties": False,
                    "properties": {"rayStartParams": PARAMETERS, "template": POD},
                },
                "workerGroupSpecs": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["groupName", "minReplicas", "maxReplicas", "template"],
                        "additionalProperties": False,
                        "properties": {
                            "groupName": {"type": "string"},
                            "replicas": COUNT,
                            "minReplicas": COUNT,
                            "maxReplicas": COUNT,
                            "rayStartParams": PARAMETERS,
                            "template": POD,
                        },
                    },
                },
            },
        },
    },
}


@pytest.fixture
def manifest() -> Any:
    return yaml.safe_load((ROOT / "docs" / "howto" / "kuberay.yaml").read_text("utf-8"))


def test_the_operator_takes_it(manifest: Any) -> None:
    jsonschema.validate(manifest, RAY_CLUSTER)
    pinned = re.search(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), flags=re.MULTILINE)
    assert pinned is not None
    assert manifest["spec"]["rayVersion"] == pinned[1]


def test_every_node_has_the_token_the_image_and_the_volume(manifest: Any) -> None:
    spec = manifest["spec"]
    pods = [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    assert len({pod["containers"][0]["image"] for pod in pods}) == 1
    for pod in pods:
        (container,) = pod["containers"]
        told = {each["name"]: each for each in container["env"]}
        assert told["RAY_AUTH_MODE"]["value"] == "token"
        assert "secretKeyRef" in told["RAY_AUTH_TOKEN"]["valueFrom"]
        assert {each["name"] for each in container["volumeMounts"]} <= {
            each["name"] for each in pod["volumes"]
        }

"""What the OpenAPI description says of bodies that are read by hand."""

from typing import Any

_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_MEANINGS = {
    400: "The request is not understood.",
    401: "No token that is known.",
    403: "The token does not allow this.",
    404: "There is no such thing.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "The body is encoded.",
    429: "Too many open questions; ask again after Retry-After.",
    503: "The service shuts down, or its memory does not answer.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": meaning, "content": {"application/json": {"schema": _ERROR}}}
    for status, meaning in _MEANINGS.items()
}

_TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string", "enum": ["image"]},
        "shape": {"type": "array", "items": {"type": "integer"}, "maxItems": 8},
        "datatype": {"type": "string", "enum": ["FP32", "UINT8", "BYTES"]},
        "parameters": {"type": "object", "properties": {"binary_data_size": {"type": "integer"}}},
        "data": {"type": "array", "items": {}},
    },
}
_OUTPUT = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string"},
        "parameters": {"type": "object", "properties": {"binary_data": {"type": "boolean"}}},
    },
}
_INFER = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": {
            "type": "object",
            "properties": {
                "n": {"type": "integer", "minimum": 1},
                "alpha": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
                "deadline": {"type": "number", "exclusiveMinimum": 0},
                "binary_data_output": {"type": "boolean"},
            },
        },
        "inputs": {"type": "array", "items": _TENSOR, "minItems": 1, "maxItems": 1},
        "outputs": {"type": "array", "items": _OUTPUT},
    },
}
INFER_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": _INFER}}}}
_FILE = {"schema": {"type": "string", "format": "binary"}}
IMAGE_BODY = {"requestBody": {"required": True, "content": {"image/png": _FILE, "image/jpeg": _FILE}}}

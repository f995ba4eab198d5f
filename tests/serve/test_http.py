"""The service over HTTP: others' clients, who may ask, what is refused, and how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import trial
from sigmax import CertificateMemory
from sigmax.serve.protocol import HEADER
from sigmax.serve.service import Limits
from trial import INFER, SHAPE, Served, image, make_service, png, serving, true_radius

TOKENS = """
# role token
ask        token-that-may-ask-0001
settle     token-that-may-settle-01
administer token-of-an-operator-01
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service that takes some milliseconds for a batch."""
    with serving(make_service(tmp_path_factory.mktemp("service"))) as started:
        yield started


def body(pixels: Any, *, outputs: Any = None, **parameters: Any) -> dict[str, Any]:
    """A request in JSON."""
    pixels = np.asarray(pixels)
    tensor = {"name": "image", "datatype": "FP32", "shape": list(pixels.shape), "data": pixels.flatten().tolist()}
    return {"inputs": [tensor], "parameters": parameters, **({"outputs": outputs} if outputs else {})}


def outputs_of(response: httpx.Response) -> dict[str, list[Any]]:
    assert response.status_code == 200, response.text
    return {output["name"]: output["data"] for output in response.json()["outputs"]}


def test_answers_are_certificates_and_those_in_the_memory(served: Served) -> None:
    images = np.stack([image(level) for level in (0.2, 0.8, 0.9)])
    found = outputs_of(served.client.post(INFER, json=body(images, n=2_000)))
    assert found["label"] == [0, 1, 1]
    assert found["n"] == [2_000] * 3
    for pixels, radius, p_lower in zip(images, found["radius"], found["p_lower"], strict=True):
        assert 0 < radius < true_radius(pixels)
        assert 0.5 < p_lower < 1
    stored = served.stored(images)
    assert [(answer.label, answer.radius, answer.sigma, answer.rule) for answer in stored] == list(
        zip(found["label"], found["radius"], found["sigma"], found["rule"], strict=True)
    )
    again = outputs_of(served.client.post(INFER, json=body(images, n=500, alpha=0.01)))
    assert again == found | {"recalled": [True] * 3}
    one = served.client.post("/ask", content=png(images[0])).json()
    assert (one["label"], one["class"], one["radius"], one["recalled"]) == (0, "dark", found["radius"][0], True)


def test_every_way_to_send_an_image_is_the_same_question(served: Served) -> None:
    from base64 import b64encode

    pixels = image(0.25, seed=5)
    whole = np.rint(255 * pixels).astype(int)
    asked = [
        body(pixels[None]),
        {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, *SHAPE], "data": pixels[None].tolist()}]},
        {"inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, *SHAPE], "data": whole.flatten().tolist()}]},
        {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": [b64encode(png(pixels)).decode()]}]},
    ]
    found = [outputs_of(served.client.post(INFER, json=each)) for each in asked]
    assert [answer["recalled"] for answer in found] == [[False], [True], [True], [True]]
    assert len({answer["radius"][0] for answer in found}) == 1


def test_tritons_own_client_works(served: Served, tmp_path: Path) -> None:
    """In a process of its own: the client changes how Python waits."""
    code = """
import sys, numpy as np, tritonclient.http as triton
address, pixels = sys.argv[1], np.load(sys.argv[2])
with triton.InferenceServerClient(address) as client:
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("bright")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    metadata = client.get_model_metadata("bright")
    assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}], metadata
    sent = triton.InferInput("image", pixels.shape, "FP32").set_data_from_numpy(pixels)  # binary by default
    said = {"n": 1000, "alpha": 0.001, "deadline": 60.0}
    binary = client.infer("bright", [sent], parameters=said)
    wanted = [triton.InferRequestedOutput(name, binary_data=False) for name in ("radius", "label")]
    sent = triton.InferInput("image", pixels.shape, "FP32").set_data_from_numpy(pixels, binary_data=False)
    plain = client.infer("bright", [sent], outputs=wanted, request_id="seven", timeout=10**7)
    assert plain.get_response()["id"] == "seven" and plain.as_numpy("sigma") is None
    for name in ("label", "radius"):
        assert np.array_equal(binary.as_numpy(name), plain.as_numpy(name)), name
    assert binary.as_numpy("label").tolist() == [0, 1]
    assert binary.as_numpy("rule").tolist() == [b"kept", b"kept"], binary.as_numpy("rule")
    assert binary.as_numpy("recalled").tolist() == [False, False]
    try:
        client.infer("bright", [triton.InferInput("image", [1, 3], "FP32").set_data_from_numpy(np.zeros((1, 3), "f4"))])
    except triton.InferenceServerException as error:
        assert "expected shape" in str(error)
    else:
        sys.exit("a wrong shape was taken")
    print(binary.as_numpy("radius").tolist())
"""
    images = np.stack([image(0.3, seed=7), image(0.7, seed=7)])
    path = tmp_path / "images.npy"
    np.save(path, images)
    address = f"{served.host}:{served.port}"
    done = subprocess.run([sys.executable, "-c", code, address, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [answer.radius for answer in served.stored(images)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"inputs": []}, "one input named image"),
        ({"inputs": [{"name": "picture", "shape": [1], "datatype": "FP32", "data": [1]}]}, "named image"),
        ({"inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP16", "data": [1]}]}, "datatype"),
        ({"inputs": [{"name": "image", "shape": [1, 3, 8, 8], "datatype": "FP32", "data": [1]}]}, "shape"),
        ({"inputs": [{"name": "image", "shape": [10**9, 1, 8, 8], "datatype": "FP32", "data": [1]}]}, "1 to 64"),
        ({"inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [1]}]}, "64 numbers"),
        ({"inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": ["a"] * 64}]}, "64 numbers"),
        ({"inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [1e300] * 64}]}, "finite"),
        ({"inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.3] * 64}]}, "multiples"),
        ({"inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "UINT8", "data": [256] * 64}]}, "0 to 255"),
        ({"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": ["AAAA"]}]}, "image file"),
        ({"parameters": {"n": 10**6}}, "n <= 100000"),
        ({"parameters": {"n": "many"}}, "whole number n"),
        ({"parameters": {"n": 5}}, "raise n"),
        ({"parameters": {"alpha": 2}}, "alpha"),
        ({"parameters": {"deadline": -1}}, "deadline"),
        ({"parameters": {"dealine": 1}}, "did you mean deadline"),
        ({"outputs": [{"name": "radios"}]}, "did you mean radius"),
    ],
)
def test_a_malformed_request_is_told_what_is_expected(served: Served, change: dict[str, Any], said: str) -> None:
    response = served.client.post(INFER, json=body(image(0.3)[None]) | change)
    assert response.status_code == 400
    assert said in response.json()["error"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"inputs": 3}'])
def test_what_is_not_json_is_refused(served: Served, content: bytes) -> None:
    assert served.client.post(INFER, content=content).status_code == 400


@pytest.mark.parametrize("length", ["-1", "abc", "10000000", "9" * 5_000, "3"])
def test_a_wrong_length_of_the_header_is_refused(served: Served, length: str) -> None:
    content = json.dumps(body(image(0.3)[None])).encode()
    assert served.client.post(INFER, content=content, headers={HEADER: length}).status_code == 400


def test_only_what_exists_is_found(served: Served) -> None:
    for path in ("/v2/models/other", "/v2/models/bright/versions/2/ready", "/nothing", "/docs"):
        assert served.client.get(path).status_code == 404
    assert served.client.get(INFER).status_code == 405
    assert served.client.post("/ask/0123/stop").status_code == 404
    assert served.client.get("/v2/models/bright/versions/1").json()["name"] == "bright"
    policy = served.client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-inline'; script" in policy  # for styles alone


def test_too_much_is_refused(served: Served) -> None:
    assert served.client.post("/ask", content=b"x" * (2**20 + 1)).status_code == 413
    assert served.client.post("/ask", content=iter([b"x" * 2**18] * 5)).status_code == 413  # without a length
    response = served.client.post("/ask", content=png(np.zeros((1, 900, 900), np.float32)))
    assert (response.status_code, "900 x 900" in response.text) == (400, True)
    assert served.client.post("/ask", content=b"", headers={"content-encoding": "gzip"}).status_code == 415
    assert served.client.get("/v2/health/ready").status_code == 200


def test_a_stream_says_what_is_proved_and_can_be_stopped(tmp_path: Path) -> None:
    with serving(make_service(tmp_path, seconds=0.002)) as served:
        asked = {"params": {"n": 100_000}, "headers": {"accept": "text/event-stream"}}
        events: list[tuple[str, dict[str, Any]]] = []
        with served.client.stream("POST", "/ask", content=png(image(0.8)), timeout=60, **asked) as response:  # type: ignore[arg-type]
            name = ""
            for line in response.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                if line.startswith("data: "):
                    events.append((name, json.loads(line.removeprefix("data: "))))
                    if len(events) == 6:
                        stopped = httpx.post(f"{served.address}/ask/{events[0][1]['id']}/stop")
                        assert stopped.json() == {"stopped": True}
        assert [name for name, _ in events[:6]] == ["question", *["proved"] * 5]
        radii = [data["radius"] for name, data in events if name == "proved"]
        assert radii == sorted(radii)
        assert len(set(radii)) > 2
        name, answer = events[-1]
        assert name == "answer"
        assert radii[-1] <= answer["radius"] < true_radius(image(0.8))
        assert 0 < answer["n"] < 100_000
        (stored,) = served.stored(image(0.8)[None])
        assert (stored.label, stored.radius, stored.rule) == (answer["label"], answer["radius"], answer["rule"])


def test_a_deadline_ends_sampling_with_what_is_proved(tmp_path: Path) -> None:
    with serving(make_service(tmp_path, seconds=0.002)) as served:
        began = time.monotonic()
        found = outputs_of(served.client.post(INFER, json=body(image(0.8)[None], n=100_000, deadline=0.5)))
        assert time.monotonic() - began < 30
        assert found["label"] == [1]
        assert 0 < found["n"][0] < 100_000
        assert 0 < found["radius"][0] < true_radius(image(0.8))


def test_a_full_queue_says_when_to_come_back(tmp_path: Path) -> None:
    with serving(make_service(tmp_path, seconds=0.05, most=2)) as served:
        first = threading.Thread(
            target=served.client.post, args=(INFER,), kwargs={"json": body([image(0.2), image(0.8)], n=2_000)}
        )
        first.start()
        while not served.service.desk.open:
            time.sleep(0.01)
        response = served.client.post(INFER, json=body(image(0.3)[None]))
        assert response.status_code == 429
        assert 1 <= int(response.headers["retry-after"]) <= 60
        first.join()
        assert served.client.post(INFER, json=body(image(0.3)[None])).status_code == 200


def test_roles_say_who_may_do_what(tmp_path: Path) -> None:
    pairs = [line.split() for line in TOKENS.splitlines() if line and not line.startswith("#")]
    by_role = {role: {"authorization": f"Bearer {token}"} for role, token in pairs}
    asked = {"json": body(image(0.3)[None])}
    with serving(make_service(tmp_path, tokens=TOKENS)) as served:
        client = served.client
        for headers in ({}, {"authorization": "Bearer guess"}, {"authorization": f"Basic {pairs[2][1]}"}):
            refused = client.post(INFER, headers=headers, **asked)  # type: ignore[arg-type]
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            for path in ("/v2", "/v2/models/bright", "/about", "/metrics"):
                assert client.get(path, headers=headers).status_code == 401
        # A live memory stores what it answers.
        assert client.post(INFER, headers=by_role["ask"], **asked).status_code == 403  # type: ignore[arg-type]
        assert client.post(INFER, headers=by_role["settle"], **asked).status_code == 200  # type: ignore[arg-type]
        assert client.get("/metrics", headers=by_role["settle"]).status_code == 403
        metrics = client.get("/metrics", headers=by_role["administer"]).text
        assert 'sigmax_answers_total{rule="kept",source="sampling"} 1.0' in metrics
        assert "sigmax_memory_entries 1.0" in metrics
        assert f'sigmax_requests_total{{route="{INFER.replace("bright", "{name}")}",status="403"}} 1.0' in metrics
        for path in ("/", "/v2/health/live", "/v2/health/ready"):
            assert client.get(path).status_code == 200


def raw(served: Served, *parts: bytes, pause: float = 0.0, half_close: bool = False) -> bytes:
    """Send bytes in parts, and read until the service hangs up."""
    with socket.create_connection((served.host, served.port), timeout=30) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            reply = b""
            while part := connection.recv(65_536):
                reply += part
        except (BrokenPipeError, ConnectionResetError):
            return b""
        return reply


def test_slow_endless_and_half_closed_requests_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sigmax.serve.server._HEAD_SECONDS", 2.0)
    with serving(make_service(tmp_path, limits=Limits(body_bytes=2**20, body_seconds=2.0))) as served:
        head = b"POST /ask HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
        found: dict[str, bytes] = {}

        def attack(name: str, *parts: bytes, pause: float = 0.0, half_close: bool = False) -> None:
            found[name] = raw(served, *parts, pause=pause, half_close=half_close)

        attacks = [
            threading.Thread(target=attack, args=("slow body", head, *[b"x"] * 20), kwargs={"pause": 1.0}),
            threading.Thread(target=attack, args=("slow head", *[b"G"] * 20), kwargs={"pause": 1.0}),
            threading.Thread(target=attack, args=("nothing sent",)),
            threading.Thread(
                target=attack, args=("endless head", b"GET / HTTP/1.1\r\n", *[b"a: " + b"b" * 9_000 + b"\r\n"] * 9)
            ),
            threading.Thread(target=attack, args=("half closed", head, b"x" * 10), kwargs={"half_close": True}),
            threading.Thread(target=attack, args=("no HTTP", b"\x16\x03\x01\x02\x00" * 10 + b"\r\n\r\n")),
        ]
        for each in attacks:
            each.start()
        assert outputs_of(served.client.post(INFER, json=body(image(0.8)[None])))["label"] == [1]
        for each in attacks:
            each.join()
        assert found["slow body"].startswith((b"HTTP/1.1 408", b""))
        assert b"200 OK" not in b"".join(found.values())
        assert outputs_of(served.client.post(INFER, json=body(image(0.2)[None])))["label"] == [0]
        assert served.service.desk.open == 0


def test_a_client_that_hangs_up_is_not_sampled_for(tmp_path: Path) -> None:
    with serving(make_service(tmp_path, seconds=0.01)) as served:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{served.address}{INFER}", json=body(image(0.8)[None], n=100_000), timeout=0.5)
        began = time.monotonic()
        while served.service.desk.open:
            assert time.monotonic() - began < 30
            time.sleep(0.01)
        assert len(served.service.memory) == 0


def test_a_signal_ends_it_after_what_it_accepted(tmp_path: Path) -> None:
    """The whole command, in a process of its own: start, ask, SIGTERM in the middle, answer, exit code 0."""
    command = [sys.executable, "-m", "sigmax", "serve", "trial:bright", "--memory", str(tmp_path / "m.db")]
    given = {"--classes": 2, "--sigma": 0.25, "--shape": "1,8,8", "--name": "bright", "--batch": 64, "--port": 0}
    options = [str(word) for pair in given.items() for word in pair]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(trial.__file__).parent), *sys.path])}
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        line = json.loads(process.stderr.readline())
        assert line["event"] == "serving"
        answers: list[httpx.Response] = []

        def ask() -> None:
            with httpx.Client(transport=httpx.HTTPTransport(retries=50), timeout=60) as client:
                answers.append(client.post(line["address"] + INFER, json=body(image(0.8)[None], n=20_000)))

        asking = threading.Thread(target=ask)
        asking.start()
        while "questions 1.0" not in httpx.get(line["address"] + "/metrics", timeout=60).text:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        asking.join()
        log = process.stderr.read().splitlines()
        assert process.wait(60) == 0
    found = outputs_of(answers[0])
    assert (found["label"], found["n"]) == ([1], [20_000])
    assert json.loads(log[-1])["event"] == "stopped"
    assert {json.loads(each)["event"] for each in log} == {"request", "stopped"}
    with CertificateMemory.existing(tmp_path / "m.db") as memory:
        assert [entry.answer.radius for entry in memory.entries()] == found["radius"]


def test_a_port_in_use_is_one_line_and_the_command_ends(run: Any, served: Served, tmp_path: Path) -> None:
    options = ("--classes", 2, "--sigma", 0.25, "--shape", "1,8,8", "--batch", 64, "--port", served.port)
    code, _, error = run("serve", "trial:bright", "--memory", tmp_path / "m.db", *options)
    assert (code, "in use" in error) == (2, True)
    assert [thread.name for thread in threading.enumerate()].count("sampling") == 1  # that of the other service


def test_wrong_options_are_one_line(run: Any, tmp_path: Path) -> None:
    given = ("serve", "model", "--memory", tmp_path / "m.db")
    assert "--port from 0 to 65535, got port=70000" in run(*given, "--port", 70_000)[2]
    (tmp_path / "tokens").write_bytes(b"ask \xff\xfe")
    code, _, error = run(*given, "--tokens", tmp_path / "tokens")
    assert (code, "a text file for --tokens" in error) == (2, True)


def test_a_service_that_others_can_reach_needs_tokens(run: Any, tmp_path: Path) -> None:
    given = ("serve", "model", "--memory", tmp_path / "m.db", "--host")
    code, _, error = run(*given, "0.0.0.0")
    assert (code, "expected tokens" in error) == (2, True)
    (tmp_path / "tokens").write_text("settle short\n")
    code, _, error = run(*given, "127.0.0.1", "--tokens", tmp_path / "tokens")
    assert (code, "at least 16 characters" in error) == (2, True)


def test_a_frozen_service_answers_for_ever_the_same_and_names_its_memory(tmp_path: Path) -> None:
    known, unknown = image(0.8, seed=1), image(0.2, seed=1)
    live = make_service(tmp_path)
    with serving(live) as served:
        settled = outputs_of(served.client.post(INFER, json=body(known[None])))
    with CertificateMemory.existing(tmp_path / "memory.db") as memory:
        digest = memory.freeze(sigma=0.25).digest
    with serving(make_service(tmp_path, tokens=TOKENS, is_frozen=True)) as served:
        headers = {"authorization": "Bearer token-that-may-ask-0001"}
        reply = served.client.post(INFER, json=body([known, unknown]), headers=headers)
        found = outputs_of(reply)
        assert reply.json()["parameters"] == {"memory": digest}
        assert (found["label"], found["radius"][0], found["recalled"]) == ([1, 0], settled["radius"][0], [True, False])
        assert 0 < found["radius"][1] < true_radius(unknown)
        again = outputs_of(served.client.post(INFER, json=body([known, unknown]), headers=headers))
        assert (again["label"], again["recalled"]) == ([1, 0], [True, False])  # nothing was stored
        about = served.client.get("/about", headers=headers).json()
        assert (about["digest"], about["entries"]) == (digest, 1)


def test_a_stream_names_the_nearest_entries(tmp_path: Path) -> None:
    with serving(make_service(tmp_path)) as served:
        levels = (0.1, 0.85, 0.7, 0.8)
        for level in levels[:3]:
            assert served.client.post("/ask", content=png(image(level))).status_code == 200
        stream = {"accept": "text/event-stream"}
        lines = served.client.post("/ask", content=png(image(levels[3])), headers=stream).text.splitlines()
        answer = json.loads([line for line in lines if line.startswith("data: ")][-1].removeprefix("data: "))
        assert [entry["id"] for entry in answer["nearest"]] == [4, 2, 3, 1]
        for entry, level in zip(answer["nearest"], (0.8, 0.85, 0.7, 0.1), strict=True):
            distance = float(np.linalg.norm(image(level) - image(0.8)))
            assert distance - 0.002 < float(entry["distance"]) <= distance

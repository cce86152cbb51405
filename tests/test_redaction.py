"""Planted secrets: none may be in the bytes of a written trace, and what is no secret stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opanatomy.pipeline import analyze_trace
from opanatomy.trace.redact import Texts, is_plain_constant, without_addresses, without_paths, without_tokens
from opanatomy.trace.redact_trace import Redaction
from opanatomy.trace.write import Annotated
from tests.handmade import HandMade, training_step

# Made up; put together here so that no scanner takes them for real ones.
HUGGING_FACE = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345"
GITHUB = "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345"
OPENAI = "sk-" + "proj-abcdefghijklmnopqrstuvwx0123456789"
AWS = "AKIA" + "IOSFODNN7EXAMPLE"
SLACK = "xoxb-" + "123456789012-abcdefghijklmnop"
JWT = "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlc2ln"
WANDB = "0123456789abcdef0123456789abcdef01234567"
PASSWORD = "correct-horse-battery"
TOKENS = (HUGGING_FACE, GITHUB, OPENAI, AWS, SLACK, JWT, WANDB, PASSWORD)

ENVIRONMENT = {
    "HOME": "/home/alice-of-home", "HOSTNAME": "gpu-node-17", "USER": "alice-of-env", "HF_TOKEN": HUGGING_FACE,
    "WANDB_API_KEY": WANDB, "SLURM_JOB_ID": "7654321", "MASTER_ADDR": "10.20.30.40", "PATH": "/opt/private/bin",
}  # fmt: skip

#: Metadata entries, and what of each must not be written by default.
METADATA: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"environ": ENVIRONMENT}, ("alice-of-home", "gpu-node-17", "alice-of-env", "7654321", "10.20.30.40", "/opt/pri")),
    ({"anything": ENVIRONMENT}, ("alice-of-home", "gpu-node-17", "alice-of-env", "7654321", "10.20.30.40")),
    ({"anything": {"deep": [{"deeper": ENVIRONMENT}]}}, ("alice-of-home", "gpu-node-17", "7654321")),
    ({"env": [f"{key}={value}" for key, value in ENVIRONMENT.items()]}, ("alice-of-home", "gpu-node-17", "7654321")),
    ({"settings": [f"{key}={value}" for key, value in ENVIRONMENT.items()]}, ("alice-of-home", "gpu-node-17")),
    ({"told": json.dumps(ENVIRONMENT)}, ("alice-of-home", "gpu-node-17", "7654321")),
    ({"told": f"environ({ENVIRONMENT})"}, ("alice-of-home", "gpu-node-17", "7654321")),
    ({"told": " ".join(f"{key}={value}" for key, value in ENVIRONMENT.items())}, ("alice-of-home", "gpu-node-17")),
    ({"HF_TOKEN": HUGGING_FACE, "SLURM_JOB_ID": "7654321"}, ("7654321",)),
    ({"host_name": "gpu-node-17", "hostName": "gpu-node-18"}, ("gpu-node-17", "gpu-node-18")),
    ({"user": "alice-of-env", "owner": {"login": "bob-the-login"}}, ("alice-of-env", "bob-the-login")),
    ({"ip": "10.20.30.40", "master_addr": "10.20.30.41", "note": "at 10.20.30.42"}, ("10.20.30.4",)),
    ({"note": "fe80:0:0:0:1:2:3:4 and 00:1a:2b:3c:4d:5e"}, ("fe80:0", "00:1a:2b")),
    ({"command_line": "python train.py --secret-thing", "argv": ["train.py", "x"]}, ("secret-thing", "train.py")),
    ({"job_id": 7654321, "slurm": {"id": 7654322}}, ("765432",)),
    ({"note": "mail alice@example.org, in /home/alice-of-home/run"}, ("alice@", "alice-of-home")),
    ({"traceName": "/home/alice-of-home/gpu-node-17_123.pt.trace.json"}, ("alice-of-home", "gpu-node-17")),
    ({"api_key": PASSWORD, "config": {"dbPassword": PASSWORD, "auth": {"token": PASSWORD}}}, (PASSWORD,)),
    ({"note": f"--token {GITHUB} password={PASSWORD} https://alice-of-env:{PASSWORD}@host.x/y"}, ("alice-of-env",)),
    ({"opanatomy": {"environment": {"HF_TOKEN": HUGGING_FACE, "HOSTNAME": "gpu-node-17"}}}, ("gpu-node-17",)),
    ({HUGGING_FACE: 1}, ()),
]  # fmt: skip


def written(trace: HandMade, tmp_path: Path, *, redact: bool = False, source: str | None = None) -> bytes:
    path = trace.write(tmp_path / "in.json")
    if source is not None:
        path.write_text(source)
    analyze_trace(path, annotated=Annotated(path=tmp_path / "out.json", redact=redact))
    return (tmp_path / "out.json").read_bytes()


def survivors(data: bytes, secrets: tuple[str, ...]) -> list[str]:
    """Secrets in the bytes as they stand, or once the JSON is decoded."""
    json.loads(data)
    decoded = json.dumps(json.loads(data), ensure_ascii=False)
    return [secret for secret in secrets if secret.encode() in data or secret in decoded]


@pytest.mark.parametrize(("entry", "secrets"), METADATA)
@pytest.mark.parametrize("behind", [False, True])
def test_metadata_gives_nothing_away(
    tmp_path: Path, entry: dict[str, Any], secrets: tuple[str, ...], behind: bool
) -> None:
    trace = training_step()
    parts = [{"traceEvents": trace.events}, entry]
    text = json.dumps({key: value for part in (parts if behind else parts[::-1]) for key, value in part.items()})
    for redact in (False, True):
        assert survivors(written(trace, tmp_path, source=text, redact=redact), (*TOKENS, *secrets)) == []


def test_metadata_of_the_profiler_stays(tmp_path: Path) -> None:
    trace = training_step()
    trace.metadata |= {
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "nccl_version": "2.21.5"},
        "record_shapes": 1, "with_stack": 1, "cuda_runtime_version": 12040, "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1790857026000000000, "trace_id": "556C37AA2D6A42AEB59C588C17F37E74",
        "note": {"learning_rate": 0.1, "num_nodes": 4, "tokens": 512},
    }  # fmt: skip
    for redact in (False, True):
        told = json.loads(written(trace, tmp_path, redact=redact))
        assert {key: told[key] for key in trace.metadata} == trace.metadata


@pytest.mark.parametrize("secret", TOKENS)
def test_tokens_are_left_out_of_events(tmp_path: Path, secret: str) -> None:
    trace = training_step()
    trace.metadata["environ"] = {"WANDB_API_KEY": WANDB, "DB_PASSWORD": PASSWORD}
    operator = trace.host(f"aten::mm {secret}", 600, 10)
    trace.annotation(f"run with {secret}", 620, 10)
    trace.launch(605, 50)
    trace.kernel(f"kernel_{secret}", 640, 10, 50)
    trace.events[-1]["args"] |= {
        "told": [{"deep": f"x {secret} y"}], secret: 1, "authToken": secret,
        "json": json.dumps({"a": {"token": secret}}),
    }  # fmt: skip
    trace.events.append({"ph": "M", "name": "process_name", "args": {"name": f"python x.py --token {secret}"}})
    trace.events.append({"ph": "i", "name": "env", "ts": 5, "args": {"environ": {"HF_TOKEN": secret}}})
    trace.host(f"opanatomy.module/{secret}", 700, 20)
    trace.host("aten::mm", 701, 10, shapes=[[8, 4], [4, 2]], types=["float", "float"])
    assert operator
    for redact in (False, True):
        assert survivors(written(trace, tmp_path, redact=redact), (secret,)) == []


def test_escapes_and_repeated_keys_hide_nothing(tmp_path: Path) -> None:
    escaped = "".join(f"\\u{ord(character):04x}" for character in HUGGING_FACE)
    events = [
        '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":1}',
        f'{{"ph":"i","ts":1,"name":"{escaped}"}}',
        f'{{"ph":"i","ts":2,"name":"{HUGGING_FACE}","name":"harmless"}}',
        f'{{"ph":"i","ts":3,"args":{{"a":"{GITHUB}","a":1}}}}',
        f'{{"ph":"i","ts":4,"name":"https:\\/\\/bob-the-login:{PASSWORD}@x"}}',
    ]
    text = f'{{"traceEvents":[{",".join(events)}]}}'
    data = written(training_step(), tmp_path, source=text)
    assert survivors(data, (HUGGING_FACE, GITHUB, PASSWORD, "bob-the-login")) == []
    assert escaped.encode() not in data


def test_what_only_looks_like_a_token_stays(tmp_path: Path) -> None:
    names = [
        "model.embed_tokens", "aten::token_type_ids", "task-scheduler-with-a-long-name", "hf_transformers_attention",
        "num_tokens=512", "tokenizer: fast", "void at::native::unrolled_elementwise_kernel<key, value>", "sk-learn",
        "ProfilerStep*", "attention key: float[8, 4]", "Memcpy HtoD (Pageable -> Device)",
    ]  # fmt: skip
    trace = training_step()
    for place, name in enumerate(names):
        trace.host(name, 600 + 10 * place, 5)
    events = json.loads(written(trace, tmp_path))["traceEvents"]
    assert [event for event in events if event.get("cat") != "opanatomy"] == trace.events


# --------------------------------------------------------------------------------------------------------- --redact

PRIVATE = (
    "alice-of-home", "secret_project", "gpu-node-17", "alice-of-env", "bob-the-login", "/opt/", "C:\\\\", "Users",
    "10.20.30.40", "call-stack-line", "argument-string", "corp.internal", "bucket-name",
)  # fmt: skip


def private_trace() -> HandMade:
    trace = training_step()
    trace.metadata |= {
        "host_name": "gpu-node-17",
        "user": "alice-of-env",
        "stackFrames": {"1": {"name": "call-stack-line"}},
    }
    shapes = {"shapes": [[8, 4], [4, 2]], "types": ["float", "float"]}
    trace.host("aten::mm", 600, 10, **shapes, constants=["argument-string", "[1, 2]"])
    trace.events[-1]["args"] |= {"Call stack": "/opt/lib/call-stack-line.py(3): f;x", "Module Hierarchy": "Linear"}
    trace.annotation("## load /home/alice-of-home/data set ##", 620, 5)
    trace.annotation("load C:\\Users\\alice-of-home\\x", 630, 5)
    trace.annotation("step of secret_project/run/trainer.py", 640, 5)
    trace.annotation(
        "read s3://bucket-name/x from node1.corp.internal (10.20.30.40) by alice-of-env@gpu-node-17", 650, 5
    )
    trace.launch(605, 60)
    trace.kernel("triton_/opt/cache/secret_project/kernel_0", 660, 5, 60)
    trace.events[-1]["args"] |= {"kernel_file": "/opt/cache/secret_project/c.py", "user": "bob-the-login"}
    frame = {"ph": "X", "cat": "python_function", "name": "secret_project.py(12): forward", "ts": 5, "dur": 1, "sf": 1}
    trace.events.append({**frame, "args": {"Python id": 1, "stack": ["call-stack-line"]}})
    trace.events.append({**frame, "name": "/home/alice-of-home/secret_project/a b.py(12): <module>", "args": {}})
    for name, label in (("process_name", "alice-of-env:gpu-node-17"), ("process_labels", "GPU of bob-the-login")):
        trace.events.append({"ph": "M", "name": name, "pid": 7, "args": {"name": label, "labels": label}})
    trace.events.append({"ph": "M", "name": "thread_name", "tid": 9, "args": {"name": "thread 9 (bob-the-login)"}})
    return trace


def test_redact_leaves_out_paths_stacks_arguments_and_people(tmp_path: Path) -> None:
    data = written(private_trace(), tmp_path, redact=True)
    assert survivors(data, PRIVATE) == []


def test_redact_keeps_what_the_report_needs(tmp_path: Path) -> None:
    trace = private_trace()
    trace.events.append({"ph": "M", "name": "process_labels", "pid": 0, "args": {"labels": "GPU 0"}})
    trace.events.append({"ph": "M", "name": "thread_name", "tid": 7, "args": {"name": "stream 7 "}})
    told = json.loads(written(trace, tmp_path, redact=True))
    texts = json.dumps(told)
    for kept in ("<path>(12): forward", "opanatomy.module/head", "GPU 0", "stream 7", "thread 9", '"[1, 2]"', "Linear"):
        assert kept in texts, kept
    before, after = analyze_trace(tmp_path / "in.json"), analyze_trace(tmp_path / "out.json")
    assert (before.classes, before.ledger, before.timeline) == (after.classes, after.ledger, after.timeline)
    assert [row.operator for row in before.operators] == [row.operator for row in after.operators]


def test_without_redact_paths_and_stacks_stay(tmp_path: Path) -> None:
    trace = private_trace()
    events = json.loads(written(trace, tmp_path))["traceEvents"]
    assert [event for event in events if event.get("cat") != "opanatomy"] == trace.events


# ------------------------------------------------------------------------------------------------------- the pieces


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no secret here", "no secret here"),
        (f"a {GITHUB}.", "a <redacted>."),
        ("Authorization: Bearer abcdefgh1234", "Authorization: Bearer <redacted>"),
        ("https://bob:pw@host/x", "https://<redacted>@host/x"),
        ("s3://b/x?X-Amz-Signature=abc&y=1", "s3://b/x?X-Amz-Signature=<redacted>&y=1"),
        ("--api-key abc --n 3", "--api-key <redacted> --n 3"),
        ("max_token: 512", "max_token: 512"),
    ],
)
def test_tokens_in_texts(text: str, told: str) -> None:
    assert without_tokens(text) == told


@pytest.mark.parametrize("key", ["pat", "PAT", "my_pat", "password", "api_key", "token", "auth", "cookie", "jwt"])
@pytest.mark.parametrize("form", ["{}=Xk39fjw0qLmz81", "--{} Xk39fjw0qLmz81", "'{}' : 'Xk39fjw0qLmz81'"])
def test_no_key_of_a_secret_is_passed_by_without_a_look(key: str, form: str) -> None:
    assert "Xk39" not in Texts().text(form.format(key))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("aten::add_", "aten::add_"),
        ("autograd::engine::evaluate_function: MmBackward0", "autograd::engine::evaluate_function: MmBackward0"),
        ("void cutlass::Kernel2<a_128x64/b>(int)", "void cutlass::Kernel2<a_128x64/b>(int)"),
        ("opanatomy.module/transformer.h.0.attn", "opanatomy.module/transformer.h.0.attn"),
        ("enumerate(DataLoader)#_Iter.__next__", "enumerate(DataLoader)#_Iter.__next__"),
        ("/a/b.py(3): f", "<path>(3): f"),
        ("~/x/y and ../z", "<path> and <path>"),
        ("in data/x/y", "in <path>"),
        ("and/or", "and/or"),
    ],
)
def test_paths_in_texts(text: str, told: str) -> None:
    assert without_paths(text) == told


def test_addresses_in_texts() -> None:
    assert without_addresses("cudnn 8.9.2, ::add, 12:34:56, aten::mm") == "cudnn 8.9.2, ::add, 12:34:56, aten::mm"
    assert without_addresses("1.2.3.4 a@b.c") == "<address> <user>"


@pytest.mark.parametrize(
    "text", ["", "1", "-1e-05", "True", "None", "[]", "[1, 2]", "[True, False]", "[[1], [2]]", "tanh", "inf"]
)
def test_plain_constants(text: str) -> None:
    assert is_plain_constant(text)


@pytest.mark.parametrize("text", ["hello", "[a, 1]", "/x", "1 apple", "cuda:0 alice"])
def test_constants_that_are_texts(text: str) -> None:
    assert not is_plain_constant(text)


def test_nesting_that_is_too_deep_is_left_out() -> None:
    deep: Any = "hf_" + "A1" * 12
    for _ in range(60):
        deep = [deep]
    told = json.dumps(Redaction({"note": deep}).metadata())
    assert "hf_" not in told

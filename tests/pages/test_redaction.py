"""What is left out of a written trace and of texts, and that what only looks like a secret stays."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.profiler import record_function

import opanatomy
from opanatomy.capture.run.export import copy_redacted
from opanatomy.io.redact import ARGUMENTS, MODULES, NAMES, OWN, PLACES, Redactor, mask_secrets
from opanatomy.pipeline import analyze_traces, summary_of_trace
from opanatomy.records import anatomy, columns, communication, comparison, experiment, memory, workload
from opanatomy.records.workload import Capture, Environment, Workload
from opanatomy.report.formats.json import json_report
from opanatomy.trace.write import Annotated
from tests.support.made_trace import TraceBuilder, training_step
from tests.support.planted import leaks

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
    ({"anything": {"deep": [{"deeper": ENVIRONMENT}]}}, ("alice-of-home", "gpu-node-17", "7654321")),
    ({"env": [f"{key}={value}" for key, value in ENVIRONMENT.items()]}, ("alice-of-home", "gpu-node-17", "7654321")),
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
    ({"distributedInfo": {"rank": 0, "apiKey": PASSWORD, HUGGING_FACE: GITHUB, "deep": [[[{"note": OPENAI}]]]}}, ()),
    ({"distributedInfo": {"backend": "alice@example.org in /home/alice-of-home at 10.20.30.40"}}, ("alice", "10.20")),
    ({HUGGING_FACE: 1}, ()),
]  # fmt: skip


def written(trace: TraceBuilder, tmp_path: Path, *, redact: bool = False, source: str | None = None) -> bytes:
    path = trace.write(tmp_path / "in.json")
    if source is not None:
        path.write_text(source)
    summary_of_trace(path, annotated=Annotated(path=tmp_path / "out.json", redact=redact))
    return (tmp_path / "out.json").read_bytes()


def survivors(data: bytes, secrets: tuple[str, ...]) -> list[str]:
    """Secrets in the bytes as they stand, or once the JSON is decoded."""
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
    metadata = trace.metadata | {
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "nccl_version": "2.21.5"},
        "record_shapes": 1,
        "with_stack": 1,
        "cuda_runtime_version": 12040,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1790857026000000000,
        "trace_id": "556C37AA2D6A42AEB59C588C17F37E74",
    }
    trace.metadata |= metadata | {"note": {"learning_rate": 0.1}}
    for redact in (False, True):
        told = json.loads(written(trace, tmp_path, redact=redact))
        assert {key: value for key, value in told.items() if key != "traceEvents"} == metadata


@pytest.mark.parametrize("secret", TOKENS)
def test_tokens_are_left_out_of_events(tmp_path: Path, secret: str) -> None:
    trace = training_step()
    trace.metadata["environ"] = {"WANDB_API_KEY": WANDB, "DB_PASSWORD": PASSWORD}
    trace.host(f"aten::mm {secret}", 600, 10)
    trace.annotation(f"run with {secret}", 620, 10)
    trace.launch(605, 50)
    trace.kernel(f"kernel_{secret}", 640, 10, 50)
    trace.events[-1]["args"] |= {
        "told": [{"deep": f"x {secret} y"}],
        secret: 1,
        "authToken": secret,
        "json": json.dumps({"a": {"token": secret}}),
    }
    trace.events.append({"ph": "M", "name": "process_name", "args": {"name": f"python x.py --token {secret}"}})
    trace.events.append({"ph": "i", "name": "env", "ts": 5, "args": {"environ": {"HF_TOKEN": secret}}})
    trace.host(f"opanatomy.module/{secret}", 700, 20)
    trace.host("aten::mm", 701, 10, shapes=[[8, 4], [4, 2]], types=["float", "float"])
    exact = '"ts": 1790857026000123.4567'  # a time has more digits than a float
    source = trace.text().replace('"ts": 620', exact)
    for redact in (False, True):
        data = written(trace, tmp_path, redact=redact, source=source)
        assert survivors(data, (secret,)) == []
        assert b"1790857026000123.4567" in data


def test_escapes_and_repeated_keys_hide_nothing(tmp_path: Path) -> None:
    escaped = "".join(f"\\u{ord(character):04x}" for character in HUGGING_FACE)
    deep = "[" * 60 + f'"{HUGGING_FACE}"' + "]" * 60
    events = [
        '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":1}',
        f'{{"ph":"i","ts":1,"name":"{escaped}"}}',
        f'{{"ph":"i","ts":2,"name":"{HUGGING_FACE}","name":"harmless"}}',
        f'{{"ph":"i","ts":3,"args":{{"a":"{GITHUB}","a":1}}}}',
        f'{{"ph":"i","ts":4,"name":"https:\\/\\/bob-the-login:{PASSWORD}@x"}}',
        f'{{"ph":"i","ts":5,"args":{{"deep":{deep}}}}}',
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
    for index, name in enumerate(names):
        trace.host(name, 600 + 10 * index, 5)
    events = json.loads(written(trace, tmp_path))["traceEvents"]
    assert [event for event in events if event.get("cat") != "opanatomy"] == trace.events


# --------------------------------------------------------------------------------------------------------- --redact

PRIVATE = (
    "alice-of-home", "secret_project", "gpu-node-17", "alice-of-env", "bob-the-login", "/opt/", "C:\\\\", "Users",
    "10.20.30.40", "call-stack-line", "argument-string", "corp.internal", "bucket-name",
)  # fmt: skip


def private_trace() -> TraceBuilder:
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
    trace.metadata["deviceProperties"] = [{"id": 0, "name": "NVIDIA A100-SXM4-40GB", "totalGlobalMem": 40 << 30}]
    told = json.loads(written(trace, tmp_path, redact=True))
    texts = json.dumps(told)
    for kept in ("<path>(12): forward", "opanatomy.module/head", "GPU 0", "stream 7", "thread 9", '"[1, 2]"', "Linear"):
        assert kept in texts, kept
    before, after = summary_of_trace(tmp_path / "in.json").anatomy, summary_of_trace(tmp_path / "out.json").anatomy
    # A kernel has a path in its name.
    timelines = [msgspec.structs.replace(side.timeline, gaps=()) for side in (before, after)]
    assert timelines[0] == timelines[1]
    assert [gap.time_ns for gap in before.timeline.gaps] == [gap.time_ns for gap in after.timeline.gaps]
    assert (before.classes, before.ledger) == (after.classes, after.ledger)
    assert [row.operator for row in before.operators] == [row.operator for row in after.operators]
    assert "https://" in (opanatomy.analyze(tmp_path / "in.json", redact=True).device.source or "")


def test_without_redact_paths_and_stacks_stay(tmp_path: Path) -> None:
    trace = private_trace()
    events = json.loads(written(trace, tmp_path))["traceEvents"]
    assert [event for event in events if event.get("cat") != "opanatomy"] == trace.events


# ------------------------------------------------------------------------------------------------------------ texts


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"a {GITHUB}.", "a <redacted>."),
        (rf"a\n{HUGGING_FACE} b", r"a\n<redacted> b"),
        (f"https://h/?x%3D{HUGGING_FACE}", "https://h/?x%3D<redacted>"),
        (r"b'x\ntoken=abcd1234'", r"b'x\ntoken=<redacted>'"),
        ("Authorization: Bearer abcdefgh1234", "Authorization: Bearer <redacted>"),
        ("Cookie: a=b; c=d", "Cookie: <redacted>"),
        ("https://bob:pw@host/x", "https://<redacted>@host/x"),
        ("abfss://container@store/x", "abfss://container@store/x"),
        ("s3://b/x?X-Amz-Signature=abc&y=1", "s3://b/x?X-Amz-Signature=<redacted>&y=1"),
        ("https://discord.com/api/webhooks/1/abc", "https://discord.com/api/webhooks/<redacted>"),
        ("--api-key abc --n 3", "--api-key <redacted> --n 3"),
        ("--set auth_token=abc --batch 4", "--set auth_token=<redacted> --batch 4"),
        ("--set 'auth_token=a b c' --batch 4", "--set 'auth_token=<redacted>' --batch 4"),
        ("auth_token None -> a b", "auth_token <redacted>"),
        ('{"db_pwd": "x y", "n": 1}', '{"db_pwd": "<redacted>", "n": 1}'),
        ("note: my_secret=abc", "note: my_secret=<redacted>"),
        ("PGPASSWORD=abc psql", "PGPASSWORD=<redacted> psql"),
        ("from 1.2.3.4 by a@b.c", "from <address> by <user>"),
        *(
            (form.format(key), form.replace("Xk39fjw0qLmz81", "<redacted>").format(key))
            for key in ("pat", "PAT", "my_pat", "password", "api_key", "token", "auth", "cookie", "jwt")
            for form in ("{}=Xk39fjw0qLmz81", "--{} Xk39fjw0qLmz81", "'{}' : 'Xk39fjw0qLmz81'")
        ),
    ],
)
def test_secrets_in_texts(text: str, told: str) -> None:
    assert Redactor().sentence(text) == told


@pytest.mark.parametrize(
    "text",
    [
        "opanatomy profile gpt2 --set num_key_value_heads=2 --set pad_token_id=0 --seq 512",
        "max_token: 512",
        "opanatomy profile gpt2 --set bos_token=<s> --task token-classification",
        "model.embed_tokens.weight",
        "pad_token_id None -> 0",
        "vocab_size 50257 -> 160",
        "aten::tokenize",
        "tokenizer: fast",
        "key: float[8, 4]",
        "void kernel<key, value>(Params::Token::kHash)",
        "triton_poi_fused_0123456789abcdef0123456789abcdef_0",
        "cls_token: Parameter[1, 1, 768]",
        "forward_pass: step",
        "backward: matrix products, tokens per second",
        "vllm::unified_attention key_cache: bfloat16[2,3]",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)",
        "cudnn 8.9.2, ::add, 12:34:56, aten::mm",
    ],
)
def test_what_only_looks_like_a_secret(text: str) -> None:
    assert Redactor().sentence(text) == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("autograd::engine::evaluate_function: MmBackward0", "autograd::engine::evaluate_function: MmBackward0"),
        ("void cutlass::Kernel2<a_128x64/b>(int)", "void cutlass::Kernel2<a_128x64/b>(int)"),
        ("opanatomy.module/transformer.h.0.attn", "opanatomy.module/transformer.h.0.attn"),
        ("enumerate(DataLoader)#_Iter.__next__ and/or", "enumerate(DataLoader)#_Iter.__next__ and/or"),
        ("/home/me/a/b.py(3): f", "<path>(3): f"),
        ("~/x/y and ../z in data/x/y", "<path> and <path> in <path>"),
    ],
)
def test_paths_in_texts(text: str, told: str) -> None:
    assert Redactor(everything=True).text(text) == told


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("AZURE_STORAGE_CONNECTION_STRING", "Name=me;AccountKey=Zm9vYmFyYmF6MTIz==;Suffix=x", "Zm9vYmFyYmF6MTIz"),
        ("MSSQL_CONNECTION", "Server=tcp:h;User Id=u;Password=mssqlPw-99;", "mssqlPw-99"),
        ("ODBC", "Driver={x};Uid=u;Pwd=odbcPw-99;", "odbcPw-99"),
        ("JAVA_OPTS", "-Xmx1g -Djavax.net.ssl.trustStorePassword=change-it-77", "change-it-77"),
        ("PIP_EXTRA_INDEX_URL", "https://pypitokenuser1@host.x/simple", "pypitokenuser1"),
        ("npm_config__auth", "bnBtOmF1dGg9PT09", "bnBtOmF1dGg9PT09"),
        ("REDIS_URL", "redis://:redispw-22@host:6379/0", "redispw-22"),
        ("X_SECRET", "abcdefgh-ijklmnop-qrstuvwx", "abcdefgh-ijklmnop-qr"),  # a message that ends within it
        ("X_SECRET", "wJalrXUtn/K7MDENG", "WJALRXUTN%2fK7MDENG"),
        ("X_SECRET", "a passphrase of 5 words", "a passphrase\nof 5 words"),
        ("X_SECRET", "t\u00f4ken-\u00fcmlaut-9", "t\\\\xc3\\\\xb4ken-\\\\xc3\\\\xbcmlaut-9"),
        ("X_SECRET", "\u043f\u0430\u0440\u043e\u043b\u044c-1", "/u043f/u0430/u0440/u043e/u043b/u044c-1"),
        ("X_SECRET", "\u043f\u0430\u0440\u043e\u043b\u044c-1", r"\xd0\xbf\xd0\xb0\xd1\x80\xd0\xbe\xd0\xbb\xd1\x8c-1"),
        ("X_SECRET", "key-value-1", "key-value-1"),
        ("X_SECRET", "layer_norm_8f3a9c2e", "layer_norm_8f3a9c2e"),
        ("X_SECRET", "QwErTyZxCv", "QwErTyZxCv"),
    ],
)
def test_a_secret_of_the_environment(name: str, value: str, secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert Redactor().text(f"read {secret} there") == "read <redacted> there"


# -------------------------------------------------------------------------------------------- what is no secret stays

NO_SECRETS = {
    "CACHE_KEY": "aten::mm", "OP_KEY": "aten::addmm", "NODE_KEY": "AddmmBackward0", "SORT_KEY": "layer_norm",
    "PART_KEY": "self_attn", "STEP_TOKEN": "ProfilerStep", "OPT_KEY": "Optimizer.step", "A_KEY": "convolution",
    "PATH_KEY": "transformer.h.0.attn", "KIND_TOKEN": "LayerNorm", "MY_TOKEN": "bfloat16", "MY_SECRET": "backward",
    "A_PASS": "12345678", "SSH_AUTH_SOCK": "/tmp/agent.12345", "TOKEN_FILE": "a-file-of-tokens", "X_TOKEN": "short",
    "TLS_KEY": "/etc/ssl/private/host.pem", "BOS_TOKEN": "begin-of-sentence", "API_KEY": "********",
    "USE_AUTH": "disabled",
}  # fmt: skip


@pytest.mark.parametrize("name", ["secret.json", "api_key.json", "token.pickle"])
def test_the_reason_after_the_name_of_a_file_stays(name: str) -> None:
    said = f"cannot read the trace {name}: no such file"
    assert mask_secrets(said) == said


@pytest.mark.parametrize("name", ["secret.json", "api_key.json"])
def test_a_value_after_such_a_name_is_masked(name: str) -> None:
    assert mask_secrets(f"{name}: hunter") == f"{name}: <redacted>"


def test_names_of_operators_and_modules_are_looked_for_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trace: TraceBuilder = training_step()
    for index, value in enumerate(NO_SECRETS.values()):
        trace.host(value, 120 + index, 0.5, shapes=[[8, 4], [4, 2]], types=["float", "float"])
    path = trace.write(tmp_path / "a.json")
    before = json_report(opanatomy.analyze(path))
    for name, value in NO_SECRETS.items():
        monkeypatch.setenv(name, value)
    written = tmp_path / "b.json"
    assert json_report(analyze_traces([path], annotated=Annotated(path=written))) == before
    names = {event.get("name") for event in json.loads(written.read_text())["traceEvents"]}
    assert names >= set(NO_SECRETS.values())


def test_the_fields_that_are_listed_are_fields_of_records() -> None:
    rooms = (anatomy, columns, communication, comparison, experiment, memory, workload)
    records = [
        value
        for room in rooms
        for value in vars(room).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct)
    ]
    fields = {field for record in records for field in record.__struct_fields__}
    assert {*OWN, *NAMES, *MODULES, *PLACES, *ARGUMENTS} - fields == set()


# -------------------------------------------------------------------------------------------------- at profile time


class Reading(nn.Module):
    """Takes its secret out of the environment, and names ranges after it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        secret = os.environ.pop("POPPED_TOKEN", "popped-token-value-1")
        for name in (f"use {secret}", "use " + os.environ["QUOTED_SECRET"], 'say "hi", "pid": 3', '"traceEvents": ['):
            with record_function(name):
                x = self.layer(x)
        return x.sum()


def test_names_that_kineto_does_not_escape(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A quote in the name of a range is in Kineto's trace as it is, or an apostrophe: no range is lost."""
    secrets = {"POPPED_TOKEN": "popped-token-value-1", "QUOTED_SECRET": 'quo"ted\\back$lash`tick'}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "a.json"
    anatomy = opanatomy.profile(Reading(), torch.ones(2, 4), trace=path, warmup=0)
    spellings = (*secrets.values(), 'quo"ted/back$lash', "quo'ted/back$lash")
    assert leaks(path.read_bytes() + json_report(anatomy).encode(), spellings) == []
    names = [str(event.get("name")).replace("'", '"') for event in json.loads(path.read_text())["traceEvents"]]
    assert [names.count(name) for name in ("use <redacted>", 'say "hi", "pid": 3', '"traceEvents": [')] == [2, 1, 1]
    assert not [warning for warning in anatomy.warnings if "valid event" in warning]


@pytest.mark.parametrize(
    "line", ['"name": "%s",\n    "pid": 1', '"ph": "X", "cat": "cpu_op", "name": "%s", "pid": 1, "tid": 1']
)
@pytest.mark.parametrize(
    "raw", ['a quo"ted-secret-1 b', '", "pid": 3 quo"ted-secret-1', 'tab\tquo"ted-secret-1', "quo'ted-secret-1"]
)
def test_a_quote_in_a_name_of_either_form(line: str, raw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X_SECRET", 'quo"ted-secret-1')
    text = '{"schemaVersion": 1, "traceEvents": [\n  {\n    ' + line % raw + '\n  },\n  {\n    "name": "b"\n  }\n  ]}'
    target = io.BytesIO()
    capture = Capture(version="0", command="x", created="", environment=Environment(), workload=Workload())
    copy_redacted(io.BytesIO(text.encode()), target, capture)
    events = json.loads(target.getvalue())["traceEvents"]
    assert [event["name"] for event in events] == [re.sub("quo.ted-secret-1", "<redacted>", raw), "b"]

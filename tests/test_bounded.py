"""Whatever is in a file or on the command line: an answer or the project's error, soon."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from advisor.catalogue import Catalogue
from advisor.collectors import bounded
from advisor.jobs.describe import model_work, read_content, read_model
from advisor.jobs.load import read_job, write_job
from advisor.lab.speed import fuzz
from advisor.machines.cluster import parse_cluster, read_cluster
from advisor.planners import step
from advisor.planners.core.nouns import Work
from advisor.planners.step.describe_convolutions import convolutional_work, parse_network
from advisor.records.formats import FORMATS, read_runs_as

OURS = fuzz.OURS
FUZZED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# What somebody may write for a number, a name, a list - and what nobody should.
odd = st.sampled_from(
    [None, True, -1, 0, 1, 3, 10**9, 10**18, 10**39, 1e308, -0.5, "", "x", "7", [], {}, [1], ["x"],
     {"x": 1}, [[1]], [224, 224], [10**6] * 40]
)  # fmt: skip
values = st.recursive(
    odd | st.floats() | st.integers(-(10**60), 10**60) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100,
        "n_positions": 64, "architectures": ["GPT2LMHeadModel"]}  # fmt: skip
VIT = {"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
       "image_size": 32, "patch_size": 8, "text_config": {"vocab_size": 10}}  # fmt: skip
RESNET = {"model_type": "resnet", "depths": [1, 1], "hidden_sizes": [8, 16], "num_labels": 10,
          "image_size": 32, "embedding_size": 8}  # fmt: skip
T5 = {"model_type": "t5", "d_model": 64, "d_kv": 8, "d_ff": 128, "num_layers": 2, "num_heads": 8,
      "vocab_size": 100}  # fmt: skip
UNET = {
    "_class_name": "UNet2DConditionModel", "block_out_channels": [32, 64], "in_channels": 4,
    "out_channels": 4, "sample_size": 16, "layers_per_block": 1, "cross_attention_dim": 32,
    "attention_head_dim": 8,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
}  # fmt: skip


def answer_or_error(ask: Callable[[], Any]) -> Any:
    """Return what is answered, or the project's error; no other exception is one."""
    try:
        return ask()
    except OURS as error:
        return error


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """Configurations of models with up to three entries changed, dropped or added."""
    config = dict(draw(st.sampled_from([GPT2, VIT, RESNET, T5, UNET])))
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(sorted(config)) | st.text(max_size=6))
        if draw(st.booleans()):
            config[name] = draw(values)
        else:
            config.pop(name, None)
    return config


@FUZZED
@given(configurations())
@example({"architectures": 5})
@example({**GPT2, "architectures": 5})
@example({**GPT2, "n_layer": 10**400})
@example({**GPT2, "text_config": 5})
@example({**RESNET, "depths": [10**8, 1]})
@example({**UNET, "transformer_layers_per_block": 10**8})
@example({**T5, "num_layers": 10**8})
def test_any_configuration_of_a_model(tmp_path: Path, config: dict[str, Any]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))

    def described() -> Work:
        step.longest_sequence(read_content(path))
        return model_work(read_model(path), micro_batch=2, precision="bf16")

    work = answer_or_error(described)
    if isinstance(work, OURS):
        assert work.hint
        return
    assert math.isfinite(sum(operator.flop for operator in work.operators))


@FUZZED
@given(st.from_regex(r"[0-9]{1,9}:[0-9]{1,4}(:[0-9]{1,9}x[0-9]{1,6}(,|:)){1,4}", fullmatch=True)
       | st.from_regex(r"[0-9]{1,4}:[0-9]{1,3}:[0-9]{1,9}x[0-9]{1,9}(,[0-9]{1,9}x[0-9]{1,9}){0,6}"
                       r":(plain|basic|bottleneck)(:[0-9]{1,9})?", fullmatch=True)
       | st.text(max_size=40))  # fmt: skip
@example("224:64:100000000x256:basic")
@example("1000000000:64:" + ",".join(["10000x256"] * 20) + ":basic")
@example("224:64:" + "1x256," * 100_000 + "1x256:basic")
@example("224:64:1x" + "9" * 5000 + ":basic")
def test_any_convolutional_network(text: str) -> None:
    work = answer_or_error(lambda: convolutional_work(parse_network(text), micro_batch=1))
    if isinstance(work, OURS):
        assert work.hint
        assert len(str(work)) < 4000
        return
    assert len(work.operators) < 500_000


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue.load()


@FUZZED
@given(values | st.fixed_dictionaries({"groups": values}))
@example({"groups": ["x"]})
@example({"groups": [{"gpu": "L4", "gpus_per_node": 10**30}]})
@example([{"instance_type": "x", "count": "y"}])
def test_any_cluster_file(tmp_path: Path, catalogue: Catalogue, content: Any) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(content))
    with pytest.raises(OURS) as caught:
        read_cluster(str(path), catalogue)
    assert getattr(caught.value, "hint", "")


@FUZZED
@given(st.text(max_size=60) | st.from_regex(r"[0-9]{1,30}x[0-9]{1,30}x(L4|A100)@[0-9]{1,30}Gbps"))
@example("1x8xA100+" * 100_000)
@example("9" * 100_000 + "xL4")
def test_any_cluster_text(catalogue: Catalogue, text: str) -> None:
    assert str(answer_or_error(lambda: parse_cluster(text, catalogue)))


@pytest.fixture(scope="module")
def written_job(make_job: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("job") / "job.json"
    write_job(make_job(), path)
    return json.loads(path.read_text())


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value[:2])
    found = [at] if at else []
    for key, child in inside:
        if isinstance(child, (dict, list)):
            found += places(child, (*at, key))
        else:
            found.append((*at, key))
    return found


@FUZZED
@given(st.data())
def test_any_job_file(tmp_path: Path, written_job: Any, data: st.DataObject) -> None:
    record = json.loads(json.dumps(written_job))
    *way, last = data.draw(st.sampled_from(places(record)))
    place = record
    for key in way:
        place = place[key]
    place[last] = data.draw(values)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(record))
    found = answer_or_error(lambda: read_job(path))
    assert not isinstance(found, OURS) or found.hint


READERS = {name: (one.read, one.suffix) for name, one in fuzz.targets().items()} | {
    f"import {name}": (partial(read_runs_as, name), ".json") for name in FORMATS
}
NASTY = {
    "brackets": "[" * 100_000,
    "objects": '{"a":' * 100_000,
    "infinity": '{"schema_version": Infinity}',
    "digits": '{"schema_version": 1%s}' % ("0" * 400),
    "overflow": '{"schema_version": 1e999}',
    "wide cell": "t,available\n" + "x" * 200_000 + ",1\n",
    "wide quoted cell": 'submit,gpus,duration\n"' + "x" * 200_000 + '",1,2\n',
    "null": "\0\0\0",
    "no text": "\udcff\udcfe",
    "columns": ",".join("x" * 20_001) + "\n1\n",
    "toml": "a = " + "[" * 5000,
    "numbers": "a = 1" + "0" * 400,
    "empty": "",
    "list": "[1, [2, [3]]]\n",
    "bars": "JobID|Submit|Start|Elapsed|AllocTRES\n1|2|"
    + "9" * 5000
    + "|3|gres/gpu="
    + "9" * 5000,
}


@pytest.mark.parametrize(("reader", "text"), list(itertools.product(READERS, NASTY)))
def test_every_reader_refuses_what_is_no_data(reader: str, text: str, tmp_path: Path) -> None:
    read, suffix = READERS[reader]
    path = tmp_path / f"x{suffix}"
    path.write_bytes(NASTY[text].encode(errors="surrogateescape"))
    found = answer_or_error(lambda: read(path))
    assert not isinstance(found, OURS) or len(str(found)) < 3000


class TestReaders:
    @given(values)
    def test_json_is_python_s_within_bounds(self, value: Any) -> None:
        try:
            found = bounded.parse_json(json.dumps(value))
        except ValueError:
            return
        assert found == json.loads(json.dumps(value))

    @pytest.mark.parametrize("depth", [bounded.MOST_DEPTH - 1, bounded.MOST_DEPTH + 1, 900, 10**6])
    def test_depth(self, depth: int) -> None:
        text = "[" * depth + "]" * depth
        if depth < bounded.MOST_DEPTH:
            assert bounded.parse_json(text)
        else:
            with pytest.raises(ValueError, match="nested"):
                bounded.parse_json(text)

    def test_size(self, tmp_path: Path) -> None:
        path = tmp_path / "x"
        path.write_bytes(b"x" * 100)
        assert len(bounded.read_text(path, most_bytes=100)) == 100
        with pytest.raises(ValueError, match="more than"):
            bounded.read_text(path, most_bytes=99)
        with pytest.raises(ValueError, match="more than"):
            bounded.read_text(Path("/dev/zero"), most_bytes=1 << 21)

    def test_tables_are_those_of_csv(self) -> None:
        lines = ["a,b", '1,"x,y"', "2,z"]
        assert list(bounded.csv_tables(lines)) == [{"a": "1", "b": "x,y"}, {"a": "2", "b": "z"}]
        assert bounded.csv_tables(lines).fieldnames == ["a", "b"]
        assert list(bounded.csv_rows(["a|b"], delimiter="|")) == [["a", "b"]]

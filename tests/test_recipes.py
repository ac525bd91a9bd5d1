"""Recipes of training tools: each says what its flags say, and what it does not say is asked."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from recipe_files import ACCELERATE, AXOLOTL, CASES, MEGATRON, ROWS, STARTS, TORCHTUNE, TRL
from typer.testing import CliRunner

from advisor.api import find_job
from advisor.ask import ALIASES, ENTRIES, Question
from advisor.catalogue import Catalogue
from advisor.cli.program import app, load_verb
from advisor.cli.typed import TYPED
from advisor.collectors.derive import list_runs
from advisor.errors import UsageError
from advisor.gate import read_task
from advisor.recipes import recipe
from advisor.recipes.tables import shipped
from advisor.words.recommendation import _export

RUN: Final = CliRunner()


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))


def write(name: str) -> str:
    """Write a case and what lies beside it; return the flags that say the same."""
    text, beside, flags = CASES[name]
    for file, content in {name: text, **beside}.items():
        Path(file).write_text(content, encoding="utf-8")
    return flags


def record(flags: str) -> dict[str, Any]:
    """Return the question that flags ask, by the command's own reading."""
    words = iter(shlex.split(flags))
    given: dict[str, Any] = {}
    for word in words:
        name = word.removeprefix("--").replace("-", "_")
        if word in ("--gated", "--tied"):
            given[name] = True
        elif word.startswith("--no-"):
            given[name.removeprefix("no_")] = False
        else:
            given[name] = next(words)
    return Question.read(given).to_record()


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_asks_what_its_flags_by_hand_ask(name: str) -> None:
    flags = write(name)
    assert Question.read({"recipe": name}).to_record() == record(flags)


@pytest.mark.parametrize("name", ["axolotl.yml", "megatron.sh", "kohya.toml"])
def test_the_answer_is_that_of_the_flags(name: str) -> None:
    flags = write(name)
    where = ["--gpu", "H100", "--count", "16" if name == "megatron.sh" else "1", "--json"]
    told = RUN.invoke(app, ["predict", name, *where])
    typed = RUN.invoke(app, ["predict", *shlex.split(flags), *where])
    assert told.exit_code == typed.exit_code == 0, (told.output, typed.output)
    answers = [json.loads(one.stdout) for one in (told, typed)]
    assert answers[0]["step_time_s"] == answers[1]["step_time_s"]
    assert answers[0]["training_time_h"] == answers[1]["training_time_h"]


@pytest.mark.parametrize("name", STARTS)
def test_a_file_that_starts_a_recipe_says_how_many_ranks(name: str) -> None:
    write("axolotl.yml")
    Path(name).write_text(STARTS[name], encoding="utf-8")
    found = Question.read({"recipe": name})
    assert (found.job.batch, found.layout.micro_batch) == (8 * 16, 4)


def test_the_first_line_says_what_was_understood_and_the_next_what_was_not() -> None:
    write("axolotl.yml")
    text = Path("axolotl.yml").read_text() + "relora: true\nqat: {weight_dtype: int8}\n"
    Path("axolotl.yml").write_text(text)
    lines = RUN.invoke(app, ["predict", "axolotl.yml", "--gpu", "L4"]).stdout.splitlines()
    assert lines[0] == "axolotl.yml, a recipe of Axolotl, says:"
    assert lines[1].startswith("  --stack trainer --model")
    assert max(map(len, lines)) <= 80
    assert "qat.weight_dtype, relora" in " ".join(" ".join(lines[:12]).split())
    assert not any("wandb" in one or "learning_rate" in one for one in lines[:12])


def test_flags_overrule_a_recipe_also_its_model() -> None:
    write("axolotl.yml")
    given = {"recipe": "axolotl.yml", "model": "gpt2", "lora": 8, "total_steps": 10}
    found = Question.read(given)
    assert (found.job.model, found.job.sequence, found.setup.adapter_rank) == ("gpt2", 1024, 8)
    assert (found.job.total_steps, found.job.total_samples) == (10, None)


def test_the_ranks_are_the_files_own_else_those_that_are_asked_about() -> None:
    write("axolotl.yml")
    Path("sky.yaml").write_text(STARTS["sky.yaml"], encoding="utf-8")

    def batch(*words: str) -> int:
        done = RUN.invoke(app, ["predict", *words, "--gpu", "H100", "--json"])
        assert done.exit_code == 0, done.exception
        tokens: float = json.loads(done.stdout)["units"]["tokens_per_step"]
        return round(tokens / 1024)

    assert batch("axolotl.yml") == 8
    assert batch("axolotl.yml", "--count", "4") == 32
    assert batch("axolotl.yml", "--count", "4", "--ranks", "2") == 16
    assert batch("sky.yaml", "--count", "4") == 8 * 16
    with pytest.raises(UsageError, match="goes with a recipe"):
        Question.read({"model": "gpt2", "ranks": 2})


def test_python_reads_a_recipe_too() -> None:
    write("axolotl.yml")
    job = find_job(recipe="axolotl.yml")
    assert (job.global_batch, job.total_steps) == (8, 75)


@pytest.mark.parametrize(
    ("name", "text", "flag"),
    [
        ("a.yml", AXOLOTL.replace("meta-llama/Llama-3.2-1B", "me/unheard-of"), "--model"),
        ("a.yml", AXOLOTL.replace("meta-llama/Llama-3.2-1B", "${MODEL}"), "--model"),
        ("t.yaml", TORCHTUNE.replace("max_seq_len: 4096", "max_seq_len: null"), "--sequence"),
        ("m.sh", MEGATRON.replace("--vocab-size 128256", ""), "--vocabulary"),
        ("x.yaml", ACCELERATE, "--as"),
        ("b.yaml", AXOLOTL + TRL.replace("gradient_accumulation_steps: 1\n", "").replace(
            "gradient_checkpointing: true\n", "").replace("bf16: true\n", ""), "--as axolotl"),
        ("a.yml", AXOLOTL.replace("micro_batch_size: 4", "micro_batch_size: four"), "file"),
        ("a.yml", AXOLOTL + "optimizer: sgd\n", "YAML"),
        ("a.yml", "base_model: [\n", "YAML"),
        ("a.json", '{"model_name_or_path": "gpt2", "model_name_or_path": "x"}', "JSON"),
        ("a.toml", "a = 1\na = 2\n", "TOML"),
        ("a.yml", "x" * (300 << 10), "file"),
        ("a.yml", "- 1\n", "YAML"),
        ("a.sh", "echo hello\n", "--model"),
        ("a.yml", AXOLOTL + "rl: dpo\n", "profile"),
        ("s.sh", "axolotl train elsewhere.yml\n", "beside"),
        ("a.yml", f"{AXOLOTL}deepspeed: a.txt\n", "JSON"),
        ("a.yml", "", "--model"),
    ],
)  # fmt: skip
def test_what_is_not_said_is_asked_in_one_line_with_the_flag(
    name: str, text: str, flag: str
) -> None:
    Path(name).write_text(text, encoding="utf-8")
    Path("a.txt").write_text("nothing", encoding="utf-8")
    done = RUN.invoke(app, ["predict", name, "--gpu", "L4"])
    assert isinstance(done.exception, Exception)
    assert getattr(done.exception, "exit_code", None) == 2, done.output
    assert flag in getattr(done.exception, "hint", "")
    assert "\n" not in str(done.exception)


def test_a_network_that_numbers_do_not_describe_is_asked_for_with_its_step() -> None:
    line = "yolo detect train model={}.pt data=d.yaml batch=32 device=0,1 imgsz=320\n"
    Path("y.sh").write_text(line.format("yolo11n"))
    known = Question.read({"recipe": "y.sh", "total_samples": 640}).job
    assert (known.model, known.image, known.batch) == ("yolo11n", 320, 64)
    Path("y.sh").write_text(line.format("rtdetr-l"))
    done = RUN.invoke(app, ["recommend", "y.sh"])
    assert getattr(done.exception, "exit_code", None) == 2
    assert "--cnn" in getattr(done.exception, "hint", "")
    cnn = "224:64:3x256,4x512,6x1024,3x2048:bottleneck"
    found = Question.read({"recipe": "y.sh", "cnn": cnn, "total_samples": 640})
    assert (found.job.batch, found.layout.micro_batch) == (64, 16)  # accumulated to nbs


def test_what_hydra_composes_is_asked_for_where_it_is_not_here() -> None:
    write("composed.yaml")
    Path("gpt.yaml").unlink()
    flags = [
        "--layers",
        "2",
        "--hidden",
        "64",
        "--heads",
        "4",
        "--sequence",
        "64",
        "--vocabulary",
        "9",
    ]
    done = RUN.invoke(app, ["predict", "composed.yaml", "--as", "nemo", *flags, "--gpu", "L4"])
    assert "the defaults gpt" in " ".join(done.stdout.split())


def test_a_missing_number_of_samples_is_asked_for() -> None:
    Path("a.yml").write_text(AXOLOTL, encoding="utf-8")  # rows.jsonl is elsewhere
    done = RUN.invoke(app, ["recommend", "a.yml", "--on-demand"])
    assert getattr(done.exception, "exit_code", None) == 2
    assert "3 epochs of rows.jsonl, not counted here" in done.stdout
    assert "--total-samples" in done.stdout


def test_samples_of_local_data_are_counted() -> None:
    write("axolotl.yml")
    assert Question.read({"recipe": "axolotl.yml"}).job.total_samples == 3 * len(ROWS.splitlines())


def test_aliases_that_multiply_are_refused() -> None:
    layers = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    Path("a.yml").write_text("\n".join(["a0: &a0 [1]", *layers]), encoding="utf-8")
    with pytest.raises(UsageError, match="more than 20,000 values"):
        Question.read({"recipe": "a.yml"})


def test_a_model_of_the_hubs_cache_is_known() -> None:
    snapshot = Path("hub/hub/models--me--own/snapshots/abc")
    snapshot.mkdir(parents=True)
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64,
        "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000,
        "max_position_embeddings": 512,
    }  # fmt: skip
    (snapshot / "config.json").write_text(json.dumps(config))
    job = find_job(model="me/own", total_steps=1)
    assert job.work is not None
    assert job.work.transformer is not None
    assert job.work.transformer.layers == 2


@pytest.mark.parametrize("maker", ["NousResearch", "unsloth"])
def test_a_copy_under_another_maker_has_the_dimensions(maker: str) -> None:
    own = find_job(model="meta-llama/Llama-3.2-1B", total_steps=1)
    copy = find_job(model=f"{maker}/Llama-3.2-1B", total_steps=1)
    assert own.work is not None
    assert copy.work is not None
    assert own.work.parameters == copy.work.parameters


def test_untied_embeddings_add_a_table() -> None:
    numbers = {"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 1000, "total_steps": 1}
    tied, untied = (find_job(**numbers, tied=one).work for one in (True, False))
    assert tied is not None
    assert untied is not None
    assert untied.parameters - tied.parameters == 64 * 1000


SWITCHES: Final = sorted(
    flag
    for param in load_verb("recommend").params
    if param.param_type_name == "option" and param.is_flag and "--help" not in param.opts
    for flag in (*param.opts, *param.secondary_opts)
)


@given(before=st.lists(st.sampled_from(SWITCHES), max_size=6), place=st.integers(0, 6))
@example(before=SWITCHES, place=len(SWITCHES))
def test_a_file_is_the_same_wherever_it_stands_among_switches(
    before: list[str], place: int
) -> None:
    where = min(place, len(before))
    bare = read_words([*before[:where], "a.yml", *before[where:], "--offload", "--tokens", "1B"])
    named = read_words(["--recipe", "a.yml", *before, "--offload", "--tokens", "1B"])
    assert bare[0] == named[0]
    assert named[0]["recipe"] == "a.yml"
    # What an answer prints can be asked again, by this verb and by an export.
    assert bare[1][:4] == ("advisor", "recommend", "--recipe", "a.yml")
    assert read_words(list(bare[1][2:]))[0] == bare[0]


@pytest.mark.parametrize("flag", [*SWITCHES, "--plot a.svg", "--cluster-trace t.csv"])
def test_the_footers_export_asks_the_same_question_behind_every_flag(flag: str) -> None:
    asked, typed = read_words([*flag.split(), "a.yml"])
    if flag == "--json":  # no footer
        return
    text = " ".join(_export({"rank": 1, "configuration": [{"provider": "here"}]}, typed, 200))
    printed = text.split()
    assert printed[:3] == ["Export", "advisor", "export"]
    exported = read_words(printed[3:], "export")[0]
    assert exported == {name: asked[name] for name in exported}


def read_words(words: list[str], verb: str = "recommend") -> tuple[dict[str, Any], Any]:
    """Return what a verb's words are read as, and what an answer would print of them."""
    command, before = load_verb(verb), TYPED.set(("advisor", verb, *words))
    try:
        params = command.make_context(verb, list(words)).params
        return {n: v for n, v in params.items() if n in ENTRIES or n in ALIASES}, TYPED.get()
    finally:
        TYPED.reset(before)


def test_a_python_script_is_recorded_once_then_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVISOR_RUNS", "runs")
    Path("fit.py").write_text(
        "import torch\nprint('of the script')\nm = torch.nn.Linear(8, 8)\n"
        "o = torch.optim.SGD(m.parameters(), 0.1)\n"
        "for _ in range(300):\n    m(torch.ones(4, 8)).sum().backward()\n    o.step()\n"
    )
    words = ["predict", "fit.py", "--gpu", "L4", "--json"]
    first = RUN.invoke(app, words)
    assert first.exit_code == 0, first.output
    second = RUN.invoke(app, words)
    answers = [json.loads(one.stdout) for one in (first, second)]
    assert answers[0] == answers[1]
    (run,) = list_runs()
    assert "recording the script first: advisor profile fit.py" in first.stderr
    assert second.stderr.splitlines() == [f"note: fit.py as recorded in {run.name}"]
    Path("fit.py").write_text("raise SystemExit(3)")
    os.utime("fit.py", (4e9, 4e9))
    failed = RUN.invoke(app, words)
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert isinstance(failed.exception, UsageError)
    assert "exit code 3" in str(failed.exception)
    with pytest.raises(UsageError, match=r"no script at other\.py"):
        RUN.invoke(app, ["predict", "other.py"], catch_exceptions=False)


def test_a_file_that_starts_no_known_tool_is_told_how_to_record_it() -> None:
    Path("fit.py").write_text("")
    Path("run.sh").write_text("N=2\npython fit.py --lr $N\n")
    Path("make.sh").write_text("make train\n")
    for file, command in (("run.sh", "fit.py --lr 2"), ("make.sh", "-- bash make.sh")):
        with pytest.raises(UsageError) as refused:
            Question.read({"recipe": file})
        assert f"advisor profile {command};" in refused.value.hint


DEEPSPEED_LINE: Final = "deepspeed {} t.py --deepspeed z2.json --model_name_or_path {}"
HUB: Final = "/data/models--Qwen--Qwen2.5-0.5B/snapshots/4e20de362430"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (DEEPSPEED_LINE.format("--include localhost:2,3", "gpt2"), {"batch": 16, "zero": 2}),
        (DEEPSPEED_LINE.format("--include a:0,1@b:0,1,2,3", "gpt2"), {"batch": 48}),
        (DEEPSPEED_LINE.format("--num_gpus 1", HUB), {"model": "Qwen/Qwen2.5-0.5B", "batch": 8}),
        (DEEPSPEED_LINE.format("--num_gpus 4", "../../hf/llama-2-7b") + " --bf16 2>&1 | tee a",
         {"model": "llama-2-7b", "batch": 32, "precision": "bf16"}),
        (DEEPSPEED_LINE.format("--num_gpus 1", "gpt2")
         + " --lora_r 16 --target_modules q_proj,v_proj",
         {"lora": 16, "lora_targets": "query-value", "stack": "deepspeed"}),
        ("accelerate launch --num_processes 4 --mixed_precision bf16 --use_deepspeed "
         "--zero_stage 2 --offload_optimizer_device cpu t.py --model_name_or_path gpt2",
         {"batch": 32, "precision": "bf16", "zero": 2, "offload": ("optimizer",)}),
        ("accelerate launch --num_processes 2 --mixed_precision fp16 --use_fsdp t.py "
         "--model_name_or_path gpt2", {"batch": 16, "precision": "fp16", "zero": 3}),
        (': "${M:=gpt2}"\ndeclare -a A=(\n  --nproc_per_node 2 # two\n)\ndeclare -a B=(\n'
         '  --model_name_or_path $M\n)\nsrun torchrun "${A[@]}" t.py "${B[@]}"',
         {"model": "gpt2", "batch": 16}),
    ],
)  # fmt: skip
def test_launch_lines_as_people_write_them(line: str, expected: dict[str, Any]) -> None:
    Path("z2.json").write_text('{"zero_optimization": {"stage": 2}}')
    Path("run.sh").write_text(line + " --max_seq_length 512 --max_steps 9\n")
    found = recipe(Path("run.sh")).answers
    assert {name: found.get(name) for name in expected} == expected


def test_a_script_that_is_not_trls_has_no_length_of_its_own() -> None:
    Path("run.sh").write_text("python train_sft.py --model_name_or_path gpt2 --lora_rank 4\n")
    with pytest.raises(UsageError, match="how many tokens"):
        Question.read({"recipe": "run.sh"})


def test_variables_of_a_task_reach_its_command() -> None:
    line = "python t.py --model_name $MODEL --max_seq_length 512 --max_steps 9"
    pods = "spec: {containers: [{command: [bash, -c, '%s'], env: [{name: MODEL, value: gpt2}]}]}"
    tasks = {
        "dstack.yml": f"type: task\nenv: [MODEL=gpt2, TOKEN]\ncommands: ['{line}']\n",
        "sky.yaml": f"resources: {{accelerators: H100}}\nenvs: {{MODEL: gpt2}}\nrun: {line}\n",
        "job.yaml": f"apiVersion: batch/v1\nkind: Job\n{pods % line}\n",
    }
    for name, text in tasks.items():
        Path(name).write_text(text)
        assert Question.read({"recipe": name}).job.model == "gpt2", name


def test_the_first_round_of_a_loop_is_read_and_said() -> None:
    layouts = 'L=("2,1" "1,2")\nfor ONE in "${L[@]}"; do\n  IFS=, read -r TP PP <<< "$ONE"\n'
    command = 'CMD="python run_recipe.py --recipe llama3_8b_pretrain_config"\n'
    more = 'CMD="$CMD $(echo "model.tensor_model_parallel_size=$TP" | tr -d x)"\n'
    last = 'model.pipeline_model_parallel_size=$PP a=$([ 1 -gt 1 ] && echo 1 || echo 2)"\ndone\n'
    Path("loop.sh").write_text(f'{layouts}{command}{more}srun bash -c "$CMD {last}')
    found = recipe(Path("loop.sh"))
    assert (found.answers["tp"], found.answers["pp"], found.answers["batch"]) == (2, 1, 512)
    assert "the first of 2 trainings that a loop starts" in found.notes


@pytest.mark.parametrize("name", shipped("torchtune"))
def test_every_configuration_that_torchtune_ships_is_read_by_its_name(name: str) -> None:
    Path("run.sh").write_text(f"tune run --nproc_per_node 4 r --config {name} epochs=2\n")
    if re.search("dpo|KD|ppo", name):
        with pytest.raises(UsageError, match="whose step a recipe does not describe"):
            recipe(Path("run.sh"))
        return
    found = recipe(Path("run.sh"))
    assert found.answers["batch"] % 4 == 0
    assert found.devices == 4


def test_fit_and_predict_ask_about_the_devices_that_a_file_starts() -> None:
    write("axolotl.yml")
    Path("job.sbatch").write_text(STARTS["job.sbatch"], encoding="utf-8")

    def devices(*words: str) -> int:
        done = RUN.invoke(app, ["fit", *words, "--json"])
        return int(json.loads(done.stdout)["devices"])

    assert devices("job.sbatch", "--gpu", "H100") == 16
    assert devices("job.sbatch", "--on", "aws:p5.48xlarge") == 16
    assert devices("job.sbatch", "--gpu", "H100", "--count", "2") == 2
    assert devices("axolotl.yml", "--gpu", "H100") == 1


def test_gate_judges_what_a_submission_starts() -> None:
    write("axolotl.yml")
    for name, text in STARTS.items():
        Path(name).write_text(text, encoding="utf-8")
    sky = RUN.invoke(app, ["gate", "--skypilot", "sky.yaml", "--budget", "0.001"])
    assert sky.exit_code == 3
    assert "the budget is" in sky.output
    gpu = "gpu=8xH100-80GB:nvlink@400Gbps"
    words = ["gate", "--sbatch", "--partition", gpu, "--deadline", "1s", "--", "job.sbatch"]
    assert RUN.invoke(app, words).exit_code == 3


def test_a_server_reads_no_file_that_a_request_names() -> None:
    write("axolotl.yml")
    Path("sky.yaml").write_text(STARTS["sky.yaml"], encoding="utf-8")
    with pytest.raises(UsageError, match="does not apply here"):
        Question.read({"recipe": "axolotl.yml"}, names={"budget", "model"})
    posted = read_task(STARTS["sky.yaml"], Catalogue.load())
    assert posted.said == {}
    assert read_task(STARTS["sky.yaml"], Catalogue.load(), Path("sky.yaml")).said["lora"] == 32


def test_nothing_of_a_script_is_run(tmp_path: Path) -> None:
    Path("a.sh").write_text(f"X=$(touch {tmp_path}/made)\n`touch made`\n{MEGATRON}")
    Question.read({"recipe": "a.sh"})
    assert not (tmp_path / "made").exists()

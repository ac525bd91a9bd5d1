"""What a project that people join has: help, templates, a citation, rehearsed releases."""

import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from documentation import ROOT, tool

yaml: Any = pytest.importorskip("yaml")
release = tool("release", ".ci")
PYPROJECT = '[project]\nname = "x"\nversion = "0.1.0"\n\n[tool.y]\nminversion = "3"\n'
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [0.1.0] - 2026-01-01\n\n- old\n"


def targets() -> set[str]:
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    return {
        name for line in re.findall(r"^\.PHONY:(.*)$", text, re.MULTILINE) for name in line.split()
    }


def test_make_help_names_every_target_and_no_other() -> None:
    # The tests run under make themselves: what an inner make would inherit says where it stands.
    alone = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, env=alone
    )
    lines = [
        re.fullmatch(r"  (\S+(?:, \S+)*) {2,}(\S.*)", line) for line in done.stdout.splitlines()
    ]
    assert all(lines), done.stdout
    named = [name for line in lines if line for name in line[1].split(", ")]
    assert sorted(named) == sorted(targets())


def test_what_ci_calls_are_targets() -> None:
    lines = re.findall(r"^make (.+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    called = {word for line in lines for word in line.split() if not word.startswith("-")}
    assert {"test", "lint", "docs", "test-exports"} <= called <= targets()


# --- the release --------------------------------------------------------------------------------


def test_a_version_stands_in_one_place_and_only_it_changes() -> None:
    changed = release.with_version(PYPROJECT, "0.2.0")
    assert release.version_of(changed) == "0.2.0"
    assert changed.replace("0.2.0", "0.1.0") == PYPROJECT


@pytest.mark.parametrize("version", ["0.1.0", "0.0.9", "0.1.0rc1", "1.0", "v0.2.0", "0.2.0-x"])
def test_versions_that_are_no_later_ones_are_refused(version: str) -> None:
    with pytest.raises(release.ReleaseError):
        release.with_version(PYPROJECT, version)


def test_a_release_candidate_comes_before_its_release() -> None:
    candidate = release.with_version(PYPROJECT, "0.2.0rc1")
    assert release.version_of(release.with_version(candidate, "0.2.0")) == "0.2.0"


def test_unreleased_becomes_a_section_and_loses_nothing() -> None:
    changed = release.with_section(CHANGELOG, "0.2.0", date(2026, 11, 22))
    assert release.section(changed, "0.2.0") == "- new"
    assert release.section(changed, "0.1.0") == "- old"
    assert release.section(changed, "Unreleased") == ""
    assert "## [0.2.0] - 2026-11-22\n" in changed
    without = changed.replace("\n\n## [0.2.0] - 2026-11-22", "")
    assert without == CHANGELOG


@pytest.mark.parametrize(
    "changelog",
    [
        "# Changelog\n",
        "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-01-01\n",
        CHANGELOG.replace("0.1.0", "0.2.0"),
    ],
)
def test_a_changelog_without_news_or_with_the_version_is_refused(changelog: str) -> None:
    with pytest.raises(release.ReleaseError):
        release.with_section(changelog, "0.2.0", date(2026, 11, 22))


def test_our_own_files_can_be_released() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    release.with_version(pyproject, "999.0.0")
    changelog = (ROOT / "CHANGELOG.md").read_text()
    if release.section(changelog, "Unreleased"):
        release.with_section(changelog, "999.0.0", date(2026, 11, 22))
    version = release.version_of(pyproject)
    stated = [
        path.name
        for path in (ROOT / "CITATION.cff", ROOT / "mkdocs.yml", ROOT / "advisor" / "__init__.py")
        if version in path.read_text()
    ]
    assert not stated


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a release is of a commit")
def test_a_release_is_rehearsed_without_a_change(tmp_path: Path) -> None:
    before = (ROOT / "pyproject.toml").read_text(), (ROOT / "CHANGELOG.md").read_text()
    # A release that was written is built as its tag is; later news become another one.
    version, words = release.version_of(before[0]), ["--tagged"]
    if release.section(before[1], "Unreleased"):
        version, words = "999.0.0", []
    done = subprocess.run(
        [sys.executable, ".ci/release.py", version, *words, "--no-deps", "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"cloud_config_advisor-{version}-py3-none-any.whl",
        f"cloud_config_advisor-{version}.tar.gz",
    ]
    assert ((ROOT / "pyproject.toml").read_text(), (ROOT / "CHANGELOG.md").read_text()) == before


# --- files that others read ---------------------------------------------------------------------


def test_the_citation_has_what_its_schema_asks_for() -> None:
    """Citation File Format 1.2.0: required keys, types, and no key that it does not know."""
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert found["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(found)
    known = {
        "abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi",
        "identifiers", "keywords", "license", "license-url", "message", "preferred-citation",
        "references", "repository", "repository-artifact", "repository-code", "title", "type",
        "url", "version",
    }  # fmt: skip
    assert set(found) <= known
    assert found["type"] in ("software", "dataset")
    assert found["license"] == "Apache-2.0"
    entity = {"name", "address", "city", "country", "email", "website", "orcid", "alias"}
    person = {"family-names", "given-names", "affiliation", "email", "orcid", "alias"}
    for author in found["authors"]:
        assert author
        assert set(author) <= entity or set(author) <= person
    assert len(set(found["keywords"])) == len(found["keywords"])


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_workflows_run_what_is_here(name: str) -> None:
    found = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
    assert found["permissions"] == {"contents": "read"}
    commands = [
        step["run"] for job in found["jobs"].values() for step in job["steps"] if "run" in step
    ]
    named = [path for line in commands for path in re.findall(r"\.ci/[\w.]+", line)]
    assert named
    assert all((ROOT / path).is_file() for path in named)
    source = (ROOT / ".ci" / "release.py").read_text()
    for line in commands:
        if ".ci/release.py" in line:
            assert all(f'"{flag}"' in source for flag in re.findall(r"--[a-z-]+", line))


@pytest.mark.parametrize("name", ["bug.yml", "wrong_prediction.yml"])
def test_issue_forms_ask_for_what_is_needed_with_commands_that_exist(name: str) -> None:
    reference = tool("cli_reference")
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text())
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    text = str(form)
    assert "`advisor doctor --json`" in text
    assert "`advisor --version`" in text
    verbs = reference.verbs()
    for command in re.findall(r"`advisor ([a-z]+(?: [a-z]+)?)[^`]*`", text):
        assert command in verbs or command.split()[0] in verbs, command


def test_hooks_before_a_commit_are_those_of_the_linters() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    names = {hook["id"]: hook for repo in hooks for hook in repo["hooks"]}
    assert {"ruff", "ruff-format", "end-of-file-fixer", "mypy"} <= set(names)
    assert names["mypy"]["stages"] == ["manual"]
    assert (ROOT / names["command-line-reference"]["entry"].split()[1]).is_file()


# --- the site -----------------------------------------------------------------------------------


def navigation(entries: Any) -> list[str]:
    if isinstance(entries, str):
        return [entries]
    values = entries.values() if isinstance(entries, dict) else entries
    return [path for entry in values for path in navigation(entry)]


def test_every_page_is_in_the_navigation_once() -> None:
    """The pages of verbs are listed by the reference's own first page."""
    listed = navigation(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    docs = ROOT / "docs"
    listed += [
        f"cli/{page}"
        for page in re.findall(
            r"^\| \[`\w+`\]\((\w+\.md)\)", (docs / "cli" / "index.md").read_text(), re.MULTILINE
        )
    ]
    pages = [str(path.relative_to(docs)) for path in docs.rglob("*.md")]
    assert sorted(listed) == sorted(page for page in pages if not page.startswith("generated/"))


def test_links_between_pages_lead_somewhere() -> None:
    """Those that GitHub shows; the site's own are checked when it is built."""
    wrong = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        wrong += [
            f"{page.relative_to(ROOT)}: {link}"
            for link in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", text)
            if not re.match(r"https?:", link) and not (page.parent / link).exists()
        ]
    assert not wrong, "\n".join(wrong)


def test_the_picture_of_the_house_is_drawn_from_the_contracts() -> None:
    house = tool("house")
    assert house.TARGET.read_text() == house.drawing(), "run `python docs/tools/house.py`"
    floors, planners = house.floors()
    drawn = house.TARGET.read_text()
    for room in [room for layer in (*floors, *planners) for room in layer]:
        assert f">{room}<" in drawn or room in drawn


def test_nothing_of_the_site_is_loaded_from_the_network() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in settings
    assert "extra_javascript" not in settings
    assert not re.search(r"https?://", (ROOT / "docs" / "site.css").read_text())
